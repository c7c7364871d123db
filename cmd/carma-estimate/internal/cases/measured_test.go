// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"carma/estimator"
)

// measured is the folder with the measured runs, which are no part of the repository.
func measured() string { return cmp.Or(os.Getenv("CARMA_DATA"), "../../../../data") + "/memory" }

// truth is a case with what nvidia-smi showed.
type truth struct {
	keys      map[string]any
	actualMiB float64
}

// table reads a CSV file as a map by column for each row.
func table(t *testing.T, name string) []map[string]string {
	t.Helper()
	f, err := os.Open(filepath.Join(measured(), name))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("no measured runs: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil || len(all) < 2 {
		t.Fatalf("%s: %d rows, %v", name, len(all), err)
	}
	var rows []map[string]string
	for _, r := range all[1:] {
		row := map[string]string{}
		for i, column := range all[0] {
			row[column] = r[i]
		}
		rows = append(rows, row)
	}
	return rows
}

func number64(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// medians runs the cases through the command and returns the median errors in
// percent, of all rows and of those called sure, and the share of the latter.
func medians(t *testing.T, truths []truth) (all, sure, share float64) {
	t.Helper()
	var in bytes.Buffer
	enc := json.NewEncoder(&in)
	for i, c := range truths {
		c.keys["id"] = i
		if err := enc.Encode(c.keys); err != nil {
			t.Fatal(err)
		}
	}
	got := answers(t, &in, estimator.ByMethod)
	if len(got) != len(truths) {
		t.Fatalf("%d answers to %d cases", len(got), len(truths))
	}
	var errs, sures []float64
	for i, r := range got {
		if r.ID != float64(i) || r.Error != "" {
			t.Fatalf("case %d: id %v, %s", i, r.ID, r.Error)
		}
		e := 100 * math.Abs(float64(*r.MiB)/truths[i].actualMiB-1)
		errs = append(errs, e)
		if *r.Confidence == estimator.Sure.String() {
			sures = append(sures, e)
		}
	}
	return median(errs), median(sures), float64(len(sures)) / float64(len(errs))
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// The figures of issue 3, by way of the command: keys as contrib/bench/estimator gives
// them to the estimator.
func TestMeasuredReal(t *testing.T) {
	var truths []truth
	dir, err := filepath.Abs(filepath.Join(measured(), "real_summaries"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range table(t, "real_measured.csv") {
		keys := map[string]any{"summary": filepath.Join(dir, r["summary_file"]), "batch": r["batch_per_gpu"],
			"gpus": r["gpus"]}
		for key, column := range map[string]string{"seq": "seq_len", "input": "input_shape"} {
			if strings.Count(r[column], "x") == 2 || key == "seq" && r[column] != "" {
				keys[key] = r[column]
			}
		}
		for part, optim := range map[string]string{"transformers": "adamw_hf", "Adadelta": "adadelta",
			"torch AdamW": "adamw"} {
			if strings.Contains(r["optimizer"], part) {
				keys["optim"] = optim
			}
		}
		if r["parallel"] == "DataParallel" {
			keys["parallel"] = "dp"
		}
		truths = append(truths, truth{keys, number64(t, r["actual_mib_nvidia_smi"])})
	}
	all, sure, _ := medians(t, truths)
	t.Logf("%d rows: median error %.2f %%, of the sure %.2f %%", len(truths), all, sure)
	if !(all <= 3) {
		t.Errorf("median error %.2f %%", all)
	}
}

func TestMeasuredTimm(t *testing.T) {
	rows := table(t, "timm_measured.csv")
	dir := t.TempDir()
	extract(t, filepath.Join(measured(), "timm_summaries.tar.gz"), dir)
	var truths, known []truth
	for _, r := range rows {
		// From here on the rows are of families that the estimator was not made with.
		if r["model"] == "beit_base_patch16_224" && known == nil {
			known = truths
		}
		path := filepath.Join(dir, r["model"]+".txt")
		_, err := os.Stat(path)
		if err != nil || r["status"] != "ok" || number64(t, r["actual_mib"]) < 0.95*number64(t,
			r["faketensor_bwd_mib"]) {
			continue
		}
		keys := map[string]any{"summary": path, "batch": r["batch"], "input": r["input_shape"], "optim": "adamw_hf",
			"dropout": false}
		truths = append(truths, truth{keys, number64(t, r["actual_mib"])})
	}
	all, sure, share := medians(t, truths[len(known):])
	t.Logf("%d rows of families never seen: median error %.2f %%, of the sure (%.0f %%) %.2f %%",
		len(truths)-len(known), all, 100*share, sure)
	all, sure, share = medians(t, known)
	t.Logf("%d rows: median error %.2f %%, of the sure (%.0f %%) %.2f %%", len(known), all, 100*share, sure)
	if !(all <= 3.5) || !(sure <= 2.5) || share < 0.6 {
		t.Errorf("median error %.2f %%, of the sure %.2f %%, which are %.0f %%", all, sure, 100*share)
	}
}

// extract unpacks the text files of an archive into dir.
func extract(t *testing.T, archive, dir string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for a := tar.NewReader(z); ; {
		h, err := a.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(h.Name, ".txt") {
			continue
		}
		text, err := io.ReadAll(a)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(h.Name)), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
