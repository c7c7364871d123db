// SPDX-License-Identifier: Apache-2.0

// Package export writes files for other tools: a file for node_exporter's
// textfile collector, and the files for dcgm-exporter's job labels.
package export

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"carma/db/file"
	"carma/gres"
	"carma/gres/status"
	"carma/slurmbridge/version"
)

// metric is a Prometheus metric with a value for each GPU.
type metric struct {
	name, help string
	value      func(status.GPU) (float64, bool)
}

const mib = 1 << 20

var metrics = []metric{
	{"carma_gpu_smact_ratio", "SM activity over the window, 0 to 1.",
		func(g status.GPU) (float64, bool) { return float64(g.SMActPct) / 100, g.SMActPct.Known() }},
	{"carma_gpu_memory_bytes", "Memory of the GPU.", bytes(func(g status.GPU) int64 { return g.TotalMiB })},
	{"carma_gpu_memory_used_bytes", "Memory that is used.", bytes(func(g status.GPU) int64 { return g.UsedMiB })},
	{"carma_gpu_memory_leased_bytes", "Memory that is promised to jobs.",
		bytes(func(g status.GPU) int64 { return g.LeasedMiB })},
	{"carma_gpu_memory_open_bytes", "Memory that a next job can get; 0 while the GPU is closed.",
		bytes(func(g status.GPU) int64 { return g.OpenMiB })},
	{"carma_gpu_leases", "Jobs that hold the GPU.", func(g status.GPU) (float64, bool) {
		return float64(len(g.Leases)),
			true
	}},
	{"carma_gpu_closed", "1 if the GPU takes no job.", yes(func(g status.GPU) bool { return g.Closed != "" })},
	{"carma_gpu_quarantined", "1 if the GPU is kept from jobs for a fault.",
		yes(func(g status.GPU) bool { return g.Quarantine != "" })},
	{"carma_gpu_reading_age_seconds", "Age of the last reading through NVML.",
		func(g status.GPU) (float64, bool) { return g.AgeS, true }},
}

func bytes(f func(status.GPU) int64) func(status.GPU) (float64, bool) {
	return func(g status.GPU) (float64, bool) { return float64(f(g) * mib), true }
}

func yes(f func(status.GPU) bool) func(status.GPU) (float64, bool) {
	return func(g status.GPU) (float64, bool) {
		if f(g) {
			return 1, true
		}
		return 0, true
	}
}

// Text is the node in Prometheus' text format. Its labels are the node, the GPU, the method of an
// estimate and the version, never a job or a user: each would make a series.
func Text(n status.Node, ended *Ended) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# HELP carma_build_info 1, for the version of CARMA.\n# TYPE carma_build_info "+
		"gauge\ncarma_build_info{node=%q,version=%q} 1\n", n.Name, version.String())
	for _, m := range metrics {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n", m.name, m.help, m.name)
		for _, g := range n.GPUs {
			if v, ok := m.value(g); ok {
				fmt.Fprintf(&b, "%s{node=%q,uuid=%q,gpu=\"%d\"} %s\n", m.name, n.Name, g.UUID, g.Index,
					strconv.FormatFloat(v, 'g', -1, 64))
			}
		}
	}
	b.WriteString("# HELP carma_gpu_quarantine_cause 1, for the cause: mps, xid, device, jobs.\n# TYPE " +
		"carma_gpu_quarantine_cause gauge\n")
	for _, g := range n.GPUs {
		if g.Quarantine != "" {
			fmt.Fprintf(&b, "carma_gpu_quarantine_cause{node=%q,uuid=%q,gpu=\"%d\",cause=%q} 1\n", n.Name, g.UUID, g.Index,
				g.Quarantine)
		}
	}
	return b.String() + ended.text(n.Name)
}

// writeText writes the node into the file at path, at once for readers.
func writeText(path string, n status.Node, ended *Ended) error {
	if err := file.Replace(path, []byte(Text(n, ended)), 0o644); err != nil {
		return fmt.Errorf("export metrics: %w", err)
	}
	return nil
}

// writeJobs writes a file for each GPU into dir, named by its index, with the
// ids of its jobs, one a line: dcgm-exporter reads the files with
// --hpc-job-mapping-dir. A MIG instance is left out: NVML does not tell DCGM's
// number of the instance. Unchanged files are not written.
func writeJobs(dir string, readings []gres.Reading, leases []gres.Lease) error {
	for _, r := range readings {
		if r.MIG {
			continue
		}
		var ids []uint32
		for _, l := range leases {
			if l.UUID == r.UUID {
				ids = append(ids, l.Job.JobID)
			}
		}
		slices.Sort(ids)
		var text strings.Builder
		for _, id := range ids {
			fmt.Fprintln(&text, id)
		}
		path := filepath.Join(dir, strconv.Itoa(r.Index))
		old, err := os.ReadFile(path)
		if err == nil && string(old) == text.String() || errors.Is(err, fs.ErrNotExist) && len(ids) == 0 {
			continue
		}
		if err := file.Replace(path, []byte(text.String()), 0o644); err != nil {
			return fmt.Errorf("export jobs of GPU %d: %w", r.Index, err)
		}
	}
	return nil
}
