// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"carma/db/figure"
	"carma/gres/status"
	"carma/prolog"
)

var (
	schemaHeading = regexp.MustCompile(`(?m)^## (carma[\w-]*\.\w+/\d+)$`)
	schemaRow     = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([^|]+) \\|")
)

// contract reads docs/json.md: by schema, the type of each path.
func contract(t *testing.T) map[string]map[string]string {
	t.Helper()
	text, err := os.ReadFile("json.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]string{}
	heads := schemaHeading.FindAllSubmatchIndex(text, -1)
	for i, h := range heads {
		end := len(text)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		rows := map[string]string{}
		for _, m := range schemaRow.FindAllSubmatch(text[h[1]:end], -1) {
			for _, key := range expand(string(m[1])) {
				rows[key] = string(m[2])
			}
		}
		all[string(text[h[2]:h[3]])] = rows
	}
	return all
}

// expand makes a key for each word in braces: a.{b,c} is a.b and a.c.
func expand(key string) (keys []string) {
	before, rest, found := strings.Cut(key, "{")
	words, after, closed := strings.Cut(rest, "}")
	if !found || !closed {
		return []string{key}
	}
	for word := range strings.SplitSeq(words, ",") {
		keys = append(keys, expand(before+word+after)...)
	}
	return keys
}

// flatten adds the types of a JSON value to what was seen under its path.
func flatten(path string, v any, seen map[string]map[string]bool) {
	note := func(kind string) {
		if seen[path] == nil {
			seen[path] = map[string]bool{}
		}
		seen[path][kind] = true
	}
	switch v := v.(type) {
	case nil:
		note("null")
	case string:
		note("string")
	case float64:
		note("number")
	case bool:
		note("boolean")
	case []any:
		if len(v) == 0 {
			note("array")
		} else {
			if _, ok := v[0].(map[string]any); !ok {
				note("array of " + strings.Replace(fmt.Sprintf("%T", v[0]), "float64", "number", 1))
			}
		}
		for _, e := range v {
			if m, ok := e.(map[string]any); ok {
				flatten(path+"[]", m, seen)
			}
		}
	case map[string]any:
		note("object")
		for k, e := range v {
			flatten(strings.TrimPrefix(path+"."+k, "."), e, seen)
		}
	}
}

// outputs are what the commands print, by schema.
func outputs(t *testing.T) map[string][][]byte {
	t.Helper()
	all := map[string][][]byte{}
	for schema, pattern := range map[string]string{
		"carma.report/1":       "cmd/carma-report/testdata/jobs.json",
		"carma.summary/1":      "cmd/carma-report/testdata/summary.json",
		"carma.gpus/1":         "cmd/carma-report/testdata/gpus.json",
		"carma.estimate/1":     "cmd/carma-estimate/testdata/golden/*.json",
		"carma.doctor/1":       "cmd/carma-node/internal/doctor/testdata/findings.json",
		"carma-sim.run/1":      "cmd/carma-sim/testdata/run.json",
		"carma-sim.compare/1":  "cmd/carma-sim/testdata/compare.json",
		"carma-sim.forecast/1": "cmd/carma-sim/testdata/forecast.json",
		"carma-sim.submit/1":   "cmd/carma-sim/internal/run/testdata/submit.json",
	} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all[schema] = append(all[schema], text)
		}
	}
	gpu := status.GPU{SMActPct: figure.Unknown, Closed: "x", Quarantine: "xid", Leases: []status.Lease{{}}}
	text, err := json.Marshal(status.Node{Schema: "carma.status/1",
		GPUs: []status.GPU{gpu, {SMActPct: 1, Leases: []status.Lease{}}}})
	if err != nil {
		t.Fatal(err)
	}
	all["carma.status/1"] = [][]byte{text}
	text, err = json.Marshal(map[string]any{"schema": "carma.leases/1", "version": "x", "job": 1,
		"gpus": []prolog.GPU{{UUID: "x"}}})
	if err != nil {
		t.Fatal(err)
	}
	all["carma.leases/1"] = [][]byte{text}
	return all
}

// Every key that a command prints stands in json.md with its type, and every key
// there is printed.
func TestJSONContract(t *testing.T) {
	said, printed := contract(t), outputs(t)
	if got, want := slices.Sorted(maps.Keys(said)), slices.Sorted(maps.Keys(printed)); !slices.Equal(got, want) {
		t.Errorf("json.md describes %v, the commands print %v", got, want)
	}
	for schema, texts := range printed {
		seen := map[string]map[string]bool{}
		for _, text := range texts {
			var v any
			if err := json.NewDecoder(bytes.NewReader(text)).Decode(&v); err != nil {
				t.Fatal(schema, err)
			}
			if got := v.(map[string]any)["schema"]; got != schema {
				t.Errorf("%s: schema is %q", schema, got)
			}
			flatten("", v, seen)
		}
		for path, kinds := range seen {
			kind, ok := said[schema][path]
			for k := range kinds {
				switch {
				case strings.HasPrefix(path, "by.") || path == "by" || path == "":
				case !ok && (k == "object" || k == "array"): // told by what is in it
				case !ok:
					t.Errorf("%s: %s is not in json.md", schema, path)
				case !strings.Contains(kind, strings.TrimSuffix(k, " of <nil>")):
					t.Errorf("%s: %s is %s, json.md says %s", schema, path, k, kind)
				}
			}
		}
		for path := range said[schema] {
			if seen[path] == nil {
				t.Errorf("%s: nothing prints %s", schema, path)
			}
		}
	}
}
