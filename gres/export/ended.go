// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"carma/slurmbridge/usertext"
)

// Ended counts the attempts of jobs that ended on a node since its agent started,
// with what is known of them. Several goroutines may use Ended at a time.
type Ended struct {
	mu                      sync.Mutex
	attempts, oom, returned int
	estimates               map[string]*estimates // by method
}

// mostMethods bounds the methods told apart: CARMA has fewer.
const mostMethods = 16

// estimates are the outcome of a method's estimates. Both sums only grow, so that a
// rate of each is a rate.
type estimates struct {
	jobs        int
	over, under float64 // sums of the errors, as a part of the peak
}

// Add counts an attempt. estMiB and peakMiB are per GPU; 0: not known.
func (e *Ended) Add(oom, returned bool, method string, estMiB, peakMiB int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.attempts++
	if oom {
		e.oom++
	}
	if oom && returned {
		e.returned++
	}
	// out of memory, or ended by another: its peak is not what it needed
	if oom || returned || estMiB == 0 || peakMiB == 0 {
		return
	}
	if e.estimates == nil {
		e.estimates = map[string]*estimates{}
	}
	m := e.estimates[method]
	if m == nil && len(e.estimates) == mostMethods { // each makes series
		return
	}
	if m == nil {
		m = &estimates{}
		e.estimates[method] = m
	}
	m.jobs++
	if off := float64(estMiB-peakMiB) / float64(peakMiB); off > 0 {
		m.over += off
	} else {
		m.under -= off
	}
}

// text is the counts in Prometheus' text format.
func (e *Ended) text(node string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var b strings.Builder
	counter := func(name, help string) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s counter\n", name, help, name)
	}
	for _, m := range []struct {
		name, help string
		value      int
	}{
		{"carma_attempts_total", "Attempts of jobs that ended here.", e.attempts},
		{"carma_attempts_oom_total", "Of them, ran out of GPU memory.", e.oom},
		{"carma_attempts_returned_total", "Of them, requeued for it, to run exclusively.", e.returned},
	} {
		counter(m.name, m.help)
		fmt.Fprintf(&b, "%s{node=%q} %d\n", m.name, node, m.value)
	}
	for _, m := range []struct {
		name, help string
		value      func(*estimates) float64
	}{
		{"carma_estimates_total", "Attempts with an estimate and a peak.",
			func(m *estimates) float64 { return float64(m.jobs) }},
		{"carma_estimate_over_ratio_total", "Sum of estimate above peak, as a part of the peak.",
			func(m *estimates) float64 { return m.over }},
		{"carma_estimate_under_ratio_total", "Sum of estimate below peak, as a part of the peak.",
			func(m *estimates) float64 { return m.under }},
	} {
		counter(m.name, m.help)
		for _, method := range slices.Sorted(maps.Keys(e.estimates)) {
			fmt.Fprintf(&b, "%s{node=%q,method=%q} %s\n", m.name, node, usertext.Clean(method),
				strconv.FormatFloat(m.value(e.estimates[method]), 'g', -1, 64))
		}
	}
	return b.String()
}
