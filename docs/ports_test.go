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

// Ports with more methods than mostOfPort, those of embedded ones counted, and why.
const mostOfPort = 5

var largePorts = map[string]string{
	"Guard of gres/confine":  "what each way to confine jobs does",
	"Ledger of gres/agent":   "the looks, lost jobs, health and idle jobs of one loop",
	"Cluster of gres/agent":  "what the steward asks of slurmctld and does there",
	"MPS of gres/agent":      "the control daemon, its tenures, clients and logs, which one program answers for",
	"Ledger of prolog":       "readings, leases and returns of a job that starts",
	"EpilogLedger of prolog": "lease, returns and faults of a job that ends",
	"Slurm of prolog":        "slurmctld, which a hook may have to ask anything about its job",
}

// port is an interface as it stands in its package.
type port struct {
	methods  int
	embedded []string
}

// TestPorts: an interface has at most three methods of its own and five with those of embedded ones, so that what
// takes one says what it needs.
func TestPorts(t *testing.T) {
	looked, large := 0, map[string]bool{}
	for name := range imports(t) {
		if top, _, _ := strings.Cut(name, "/"); !slices.Contains(layers, top) {
			continue
		}
		ports := map[string]port{}
		for _, file := range sources(t, name) {
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				if spec, ok := n.(*ast.TypeSpec); ok {
					if typ, ok := spec.Type.(*ast.InterfaceType); ok {
						ports[spec.Name.Name] = portOf(typ)
					}
				}
				return true
			})
		}
		for of, p := range ports {
			looked++
			of := of + " of " + name
			if all := count(ports, p); all > mostOfPort {
				large[of] = true
			}
			if why := largePorts[of]; why == "" && (p.methods > 3 || large[of]) {
				t.Errorf("%s has %d methods of its own, and %d with embedded ones", of, p.methods, count(ports, p))
			}
		}
	}
	for of := range largePorts {
		if !large[of] {
			t.Errorf("%s is no large port any more", of)
		}
	}
	if looked < 20 {
		t.Errorf("%d interfaces looked at", looked)
	}
}

func portOf(typ *ast.InterfaceType) (p port) {
	for _, f := range typ.Methods.List {
		p.methods += len(f.Names)
		if of, ok := f.Type.(*ast.Ident); ok && len(f.Names) == 0 {
			p.embedded = append(p.embedded, of.Name)
		}
	}
	return p
}

func count(ports map[string]port, p port) int {
	all := p.methods
	for _, e := range p.embedded {
		all += count(ports, ports[e])
	}
	return all
}

const mostMethods = 40

// TestMethods: no type does everything, nor one of contrib.
func TestMethods(t *testing.T) {
	counts := map[string]int{}
	for name := range imports(t) {
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
		if n > mostMethods {
			t.Errorf("%s has %d methods, more than %d", of, n, mostMethods)
		}
	}
	if len(counts) < 100 {
		t.Errorf("%d types looked at", len(counts))
	}
}
