// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"carma/db"
	"carma/db/figure"
)

// Without -S and -E the GPUs are drawn over the time that there is something of: a
// minute of samples is as wide as a day of them.
func TestGPUsOverTheSpanOfTheData(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carma.db")
	d, err := db.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	midnight := time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)
	begin, now := midnight.Add(8*time.Hour), midnight.Add(9*time.Hour)
	var samples []db.Sample
	for i := range 6 {
		samples = append(samples, db.Sample{UUID: "GPU-a", At: begin.Add(time.Duration(i) * 10 * time.Second),
			Length: 10 * time.Second, UsedMiB: 40000, SMActPct: figure.Unknown})
	}
	meter := db.Meter{UUID: "GPU-a", TotalMiB: 40503, Node: "n1", At: begin}
	err = d.AddSamples(t.Context(), samples, []db.Meter{meter})
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	draw := func(o Options) string {
		t.Helper()
		base, err := db.OpenRead(path)
		if err != nil {
			t.Fatal(err)
		}
		defer base.Close()
		o.Units = "G"
		r, err := New(o, []string{GPUs}, now)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Databases([]*db.DB{base}); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := r.Show(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for _, c := range []struct {
		o        Options
		from, to time.Time
	}{
		{Options{}, begin, begin.Add(time.Minute)},
		{Options{From: "today"}, midnight, begin.Add(time.Minute)},
		{Options{To: "now"}, begin, now},
	} {
		c.o.JSON = true
		var v gpuView
		if err := json.Unmarshal([]byte(draw(c.o)), &v); err != nil {
			t.Fatal(err)
		}
		if !v.From.Equal(c.from) || !v.To.Equal(c.to) {
			t.Errorf("%s to %s, want %s to %s", v.From, v.To, c.from, c.to)
		}
	}
	if out := draw(Options{}); !strings.Contains(out, "memory  |"+strings.Repeat("@", sparkWidth)+"|") {
		t.Errorf("not all of the line is full:\n%s", out)
	}
}
