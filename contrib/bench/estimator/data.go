// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"carma/estimator"
	"carma/estimator/training"
)

// run is a measured training run and the estimates of others for the run.
type run struct {
	model, family string
	batch         int
	spec          estimator.Spec
	actualMiB     float64
	faketensorMiB float64 // 0: none
	horusMiB      float64 // as published, 0: computed
	gpumemnetMiB  float64 // as published, 0: none
	neededMiB     float64 // at least, by the published live peak; 0: not known
	paramsMiB     float64 // 0: not known
	spike         bool    // the run took scratch memory that the step does not need
}

// table is a CSV file with a header.
type table struct {
	col  map[string]int
	rows [][]string
}

func readTable(path string) (*table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("read %s: it is empty", path)
	}
	t := &table{col: map[string]int{}, rows: all[1:]}
	for i, name := range all[0] {
		t.col[name] = i
	}
	return t, nil
}

func (t *table) text(row []string, col string) string { return row[t.col[col]] }

func (t *table) num(row []string, col string) float64 {
	v, err := strconv.ParseFloat(t.text(row, col), 64)
	if err != nil {
		return 0
	}
	return v
}

func inputShape(s string) (in [3]int) {
	for i, p := range strings.SplitN(s, "x", 3) {
		n, err := strconv.Atoi(p)
		if err != nil {
			return [3]int{} // a text model has none
		}
		in[i] = n
	}
	return in
}

// realRuns are the models of the CARMA workloads.
func realRuns(dir string) ([]run, error) {
	t, err := readTable(filepath.Join(dir, "real_measured.csv"))
	if err != nil {
		return nil, err
	}
	var runs []run
	for _, r := range t.rows {
		text, err := os.ReadFile(filepath.Join(dir, "real_summaries", t.text(r, "summary_file")))
		if err != nil {
			return nil, err
		}
		s := estimator.Spec{
			Summary: text, Batch: int(t.num(r, "batch_per_gpu")), GPUs: int(t.num(r, "gpus")),
			Seq: int(t.num(r, "seq_len")), Input: inputShape(t.text(r, "input_shape")), Base: estimator.DefaultBase(),
		}
		switch o := t.text(r, "optimizer"); {
		case strings.HasPrefix(o, "transformers"):
			s.Optimizer = training.AdamWHF
		case strings.Contains(o, "Adadelta"):
			s.Optimizer = training.Adadelta
		case strings.Contains(o, "AdamW"):
			s.Optimizer = training.AdamW
		}
		if t.text(r, "parallel") == "DataParallel" {
			s.Parallel = estimator.DP
		}
		runs = append(runs, run{
			model: t.text(r, "model"), family: family(t.text(r, "model")), batch: s.Batch, spec: s,
			actualMiB: t.num(r, "actual_mib_nvidia_smi"), faketensorMiB: t.num(r, "faketensor"),
			horusMiB: t.num(r, "horus"), gpumemnetMiB: t.num(r, "gpumemnet"),
		})
	}
	return runs, nil
}

// mlpRuns are synthetic perceptrons; their layers are given in order, and a
// torchsummary text is made of them.
func mlpRuns(dir string) ([]run, error) {
	t, err := readTable(filepath.Join(dir, "mlp_measured.csv"))
	if err != nil {
		return nil, err
	}
	kinds := strings.NewReplacer("linear", "Linear", "batch_normalization", "BatchNorm1d", "dropout", "Dropout")
	var runs []run
	for _, r := range t.rows {
		var b strings.Builder
		for i, l := range strings.Split(t.text(r, "layers"), ";") {
			p := strings.Split(l, ":")
			if len(p) != 3 {
				return nil, fmt.Errorf("mlp_measured.csv: bad layer %q", l)
			}
			fmt.Fprintf(&b, "%20s %20s %12s\n", fmt.Sprintf("%s-%d", kinds.Replace(p[0]), i+1), "[-1, "+p[1]+"]", p[2])
		}
		runs = append(runs, run{
			model: "mlp", family: t.text(r, "arch"), batch: int(t.num(r, "batch")), actualMiB: t.num(r, "actual_mib"),
			spec: estimator.Spec{
				Summary: []byte(b.String()), Batch: int(t.num(r, "batch")), Dropout: estimator.On,
				Input: inputShape(t.text(r, "input")), // flat features, as input=N
				Base:  estimator.DefaultBase(),
			},
		})
	}
	return runs, nil
}

// dropped are the timm rows that are left out.
type dropped struct {
	failed     int
	impossible []run
	noSummary  []run // of a trace they can be estimated all the same
}

// processMiB is what a process takes that has cuDNN and hardly a tensor: below the
// smallest of the timm runs, 1731 MiB, for the data say about 1700.
const processMiB = 1700

// impossible says that a run took less than it needs: the live tensors by FakeTensor, or
// the process, its parameters and their gradients. It ended within its first step.
func impossible(actualMiB, faketensorMiB, params float64) bool {
	return actualMiB < 0.95*faketensorMiB || actualMiB < processMiB+2*params*4/(1<<20)
}

// timmRuns are timm models; a row is dropped where the run failed or where it
// reports less than is physically needed.
func timmRuns(dir string) ([]run, dropped, error) {
	var d dropped
	t, err := readTable(filepath.Join(dir, "timm_measured.csv"))
	if err != nil {
		return nil, d, err
	}
	texts, err := summaries(filepath.Join(dir, "timm_summaries.tar.gz"))
	if err != nil {
		return nil, d, err
	}
	var runs []run
	for _, row := range t.rows {
		r := timmRun(t, row, texts)
		switch {
		case t.text(row, "status") != "ok":
			d.failed++
		case impossible(r.actualMiB, r.faketensorMiB, t.num(row, "params")):
			d.impossible = append(d.impossible, r)
		case r.spec.Summary == nil:
			d.noSummary = append(d.noSummary, r)
		default:
			runs = append(runs, r)
		}
	}
	markSpikes(runs)
	return runs, d, nil
}

func timmRun(t *table, row []string, texts map[string][]byte) run {
	model, batch, params := t.text(row, "model"), int(t.num(row, "batch")), t.num(row, "params")
	return run{
		model: model, family: family(model), batch: batch, actualMiB: t.num(row, "actual_mib"),
		faketensorMiB: t.num(row, "faketensor_bwd_mib"),
		neededMiB:     needed(t.num(row, "faketensor_bwd_mib"), params),
		paramsMiB:     params * 4 / (1 << 20),
		spec: estimator.Spec{
			Summary: texts[model], Batch: batch, Input: inputShape(t.text(row, "input_shape")),
			Optimizer: training.AdamWHF, Dropout: estimator.Off, Base: estimator.DefaultBase(),
		},
	}
}

// family is the first word of a model's name, without digits.
func family(model string) string {
	word, _, _ := strings.Cut(model, "_")
	return strings.TrimRight(word, "0123456789")
}

// summaries reads the texts of a tar archive by model name.
func summaries(path string) (map[string][]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	texts := map[string][]byte{}
	for a := tar.NewReader(z); ; {
		h, err := a.Next()
		if errors.Is(err, io.EOF) {
			return texts, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		name := filepath.Base(h.Name)
		if !strings.HasSuffix(name, ".txt") {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(a, 1<<20))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		texts[strings.TrimSuffix(name, ".txt")] = text
	}
}
