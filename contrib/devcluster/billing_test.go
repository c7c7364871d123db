// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Jobs that share and jobs that own GPUs are billed by booked memory x time: what slurmdbd bills a job is a whole
// number, so that a GPU has to cost many (docs/admin.md). CARMA_BILLING=30m has the jobs run for so long.
func TestBilledByMemory(t *testing.T) {
	takesMinutes(t)
	needsServer(t)
	needsMySQL(t)
	c := up(t, "--nodes", "2", "--slurmdbd")
	c.sh("", `scontrol update PartitionName=gpu TRESBillingWeights="gres/carma=0.02466943"`)
	d, err := time.ParseDuration(os.Getenv("CARMA_BILLING"))
	if err != nil {
		d = 30 * time.Second
	}
	run := fmt.Sprintf("exec sleep %d\n", int(d.Seconds()))
	booked := map[string]float64{}
	for range 4 {
		booked[c.sbatch(alice, "", whole+run)] = 40536
	}
	for range 9 {
		booked[c.sbatch(bob, "", "#SBATCH --gres=gpu:1\n#CARMA mem=10G\n"+run)] = 10240
	}
	time.Sleep(d)
	for id := range booked {
		c.ends(id, "COMPLETED")
	}
	field := func(text, name string) float64 {
		m := regexp.MustCompile(name + `=([0-9.]+)`).FindStringSubmatch(text)
		if m == nil {
			return 0
		}
		n, _ := strconv.ParseFloat(m[1], 64)
		return n
	}
	costs := map[float64]float64{} // by what a job has booked
	for line := range strings.Lines(c.sh("", "sacct -nPX -a -o jobid,elapsedraw,alloctres")) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) != 3 || booked[f[0]] == 0 {
			continue
		}
		seconds, _ := strconv.ParseFloat(f[1], 64)
		costs[booked[f[0]]] += seconds * field(f[2], "billing")
		if got, want := field(f[2], "billing"), booked[f[0]]*0.02466943; got < 0.95*want || got > 1.05*want {
			t.Errorf("job %s: billing %g, want %g: %s", f[0], got, want, line)
		}
	}
	share, owns := costs[10240], costs[40536]
	const want = 9 * 10240. / (4 * 40536)
	// In half a minute the seconds of Prologs and Epilogs on a busy machine count for much.
	slack := 0.05 + 10/d.Seconds()
	if owns == 0 || share < (1-slack)*want*owns || share > (1+slack)*want*owns {
		t.Errorf("nine jobs that share cost %g, four that own %g", share, owns)
	}
	t.Logf("nine jobs that share cost %.3f of what four cost that own, by memory %.3f", share/owns, want)
}
