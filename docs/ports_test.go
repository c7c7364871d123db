// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// TestPorts: an interface has at most three methods of its own, so that what takes one says
// what it needs; larger ones are made of those.
func TestPorts(t *testing.T) {
	larger := []string{"Guard of gres/confine"} // what each way to confine jobs does
	looked := 0
	for name := range imports(t) {
		if top, _, _ := strings.Cut(name, "/"); !slices.Contains(layers, top) {
			continue
		}
		for _, file := range sources(t, name) {
			set := token.NewFileSet()
			tree, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				port, ok := spec.Type.(*ast.InterfaceType)
				if !ok {
					return true
				}
				looked++
				methods := 0
				for _, f := range port.Methods.List {
					methods += len(f.Names)
				}
				if methods > 3 && !slices.Contains(larger, spec.Name.Name+" of "+name) {
					t.Errorf("%s: %s has %d methods", set.Position(spec.Pos()), spec.Name.Name, methods)
				}
				return true
			})
		}
	}
	if looked < 20 {
		t.Errorf("%d interfaces looked at", looked)
	}
}

// manyMethods are the types that have more methods than mostMethods, and how many each may have: fewer with
// each release, none more.
const mostMethods = 40

var manyMethods = map[string]int{
	"builder of estimator/graph": 123, // to be parted by what its methods read and decide
}

// TestMethods: no type does everything.
func TestMethods(t *testing.T) {
	counts := map[string]int{}
	for name := range imports(t) {
		if top, _, _ := strings.Cut(name, "/"); !slices.Contains(layers, top) {
			continue
		}
		for _, file := range sources(t, name) {
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range tree.Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok || f.Recv == nil {
					continue
				}
				of := f.Recv.List[0].Type
				if star, ok := of.(*ast.StarExpr); ok {
					of = star.X
				}
				counts[fmt.Sprintf("%v of %s", of, name)]++
			}
		}
	}
	for of, n := range counts {
		if most := max(mostMethods, manyMethods[of]); n > most {
			t.Errorf("%s has %d methods, more than %d", of, n, most)
		}
	}
	for of, most := range manyMethods {
		if counts[of] < most {
			t.Errorf("%s has %d methods: write that here", of, counts[of])
		}
	}
}
