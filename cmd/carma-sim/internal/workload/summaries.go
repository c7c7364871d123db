// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"carma/estimator"
	"carma/estimator/training"
)

// AttachSummaries gives jobs the model summaries of measured runs: dir holds
// real_measured.csv, with a row for each run, and real_summaries/. A run is a
// job's if it used as many GPUs and, to the MiB, as much memory. It returns how
// many jobs have got one.
func AttachSummaries(jobs []Job, dir string) (int, error) {
	path := filepath.Join(dir, "real_measured.csv")
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("read measured runs: %w", err)
	}
	defer f.Close()
	t, err := newTable(path, f, ',')
	if err != nil {
		return 0, err
	}
	if err := t.need("gpus", "actual_mib_nvidia_smi", "batch_per_gpu", "summary_file"); err != nil {
		return 0, err
	}
	attached := 0
	for {
		ok, err := t.Next()
		if err != nil || !ok {
			return attached, err
		}
		spec, err := measuredSpec(t)
		if err != nil {
			return attached, err
		}
		mib, err := t.number("actual_mib_nvidia_smi", 1, maxMiB)
		if err != nil {
			return attached, err
		}
		for i := range jobs {
			if j := &jobs[i]; j.PeakMiB == int64(mib) && j.GPUs == spec.GPUs && j.Spec == nil {
				j.Spec = &spec
				attached++
			}
		}
		if spec.Summary, err = os.ReadFile(filepath.Join(dir, "real_summaries",
			filepath.Base(t.text("summary_file")))); err != nil {
			return attached, fmt.Errorf("read a model summary: %w", err)
		}
	}
}

// measuredSpec is what a user of the run would have told the estimator.
func measuredSpec(t *csvTable) (s estimator.Spec, err error) {
	s.Base = estimator.DefaultBase()
	for name, to := range map[string]*int{"gpus": &s.GPUs, "batch_per_gpu": &s.Batch, "seq_len": &s.Seq} {
		v, err := t.number(name, 0, 1e6)
		if err != nil {
			return s, err
		}
		*to = int(v)
	}
	for i, side := range strings.SplitN(t.text("input_shape"), "x", 3) {
		s.Input[i], _ = strconv.Atoi(side) // empty for text models
	}
	switch o := t.text("optimizer"); {
	case strings.HasPrefix(o, "transformers"):
		s.Optimizer = training.AdamWHF
	case strings.Contains(o, "Adadelta"):
		s.Optimizer = training.Adadelta
	case strings.Contains(o, "AdamW"):
		s.Optimizer = training.AdamW
	}
	if t.text("parallel") == "DataParallel" {
		s.Parallel = estimator.DP
	}
	return s, nil
}
