// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// spellings are requests for GPUs as clients send them: as documented, as people mistype them, and as somebody
// would who wants more GPUs than are booked.
var spellings = []string{
	"2", "02", "a:2", "2:2", "a", "0x2", "2.5", "1b", "2e0", "no_consume:2", "none", "3090:1", "nvidia_a100-80.gb:2",
	" 2", "2 ", "+2", "-2", "=2", " a:2", "a :2", "a: 2", "a=2", "a:=2", "2,gpu:0", "0,gpu:2", "2,gpu:2", "1,gpu:2",
	"a:1,gpu:b:1", "1,,gpu:2", "1,", "2;gpu:1", "2(S:0)", "2:", ":2", "a:b:2", "99999999999999999999", "4294967298",
	"18446744073709551618", "1K", "2\\,gpu:2", "2, gpu:2", "1,gres:gpu:2", "1,gres/gpu:2", "1,gpu=2", "1,GPU:2",
	"1,carma:1", "1,carma: 1", "1,carma=1", "1, carma:1", "1,shard:1",
}

// Whatever slurmctld counts as GPUs is booked: each spelling is refused, by Slurm or by CARMA, or CARMA reads as
// many GPUs as slurmctld does.
func TestSpellingsBySlurm(t *testing.T) {
	needsMySQL(t)
	c := up(t, "--nodes", "1", "--slurmdbd") // without slurmdbd slurmctld shows no count of a pending job
	raw := c.client("rawjob")
	count := func(text, gres string) int64 {
		m := regexp.MustCompile(`\b(?:Req)?TRES=\S*gres/` + gres + `=(\d+)`).FindStringSubmatch(text)
		if m == nil {
			return 0
		}
		n, _ := strconv.ParseInt(m[1], 10, 64)
		return n
	}
	booked := func(job string) bool { return count(job, "carma") == count(job, "gpu")*40536 }
	late := func(job string) bool { // libcarma has 50 ms for each of hundreds of answers
		return count(job, "carma") == 0 && !strings.Contains(job, "AdminComment=carma=") ||
			strings.Contains(job, "no answer for this job")
	}
	show := func(id string) string { return c.sh("", "scontrol show -o job "+id) }
	taken, commands, refused := map[string]string{}, map[string]string{}, 0
	// Where libcarma was late, and slurmctld took the request as written, libcarma is asked again.
	take := func(name, command string) (said string, err error) {
		for tries := 1; ; tries++ {
			id, said, err := c.run(alice, command)
			if err != nil {
				return said, err
			}
			id = strings.TrimSpace(id)
			if job := show(id); booked(job) || !late(job) || tries == 4 {
				taken[id], commands[id] = name, command
				return "", nil
			}
		}
	}
	for _, spelling := range spellings {
		sent := map[string]string{}
		for _, option := range []string{"--gres=gpu:", "--gres=gpu", "--gpus=", "--gpus-per-node=", "-n1 --gpus-per-task=",
			"--sockets-per-node=1 --gpus-per-socket="} {
			sent["sbatch "+option+spelling] = "sbatch --parsable -H -N1 -p gpu " + option + quote(spelling) + " --wrap true"
		}
		for _, prefix := range []string{"gres:", "gres/", ""} {
			for _, list := range []string{"tres_per_node", "tres_per_job"} {
				text := prefix + "gpu:" + spelling
				sent[list+"="+text] = raw + " submit gpu " + list + " " + quote(text)
			}
		}
		for name, command := range sent {
			if _, err := take(name, command); err != nil {
				refused++
			}
		}
	}
	held := func(request string) string { return "sbatch --parsable -H -N1 -p gpu " + request + " --wrap true" }
	// GPUs made of tasks by slurmctld; from 24.05 on -c is an entry of tres_per_task, too.
	for _, request := range []string{"--gres=gpu:0 -n4 --ntasks-per-gpu=2", "--gres=carma:1 -n4 --ntasks-per-gpu=2",
		"-n1 --ntasks-per-gpu=2", "--gpus=2 -c2 --ntasks-per-gpu=1"} {
		if _, err := take(request, held(request)); err != nil {
			refused++
		}
	}
	plainly := []string{"--gres=gpu:2", "--gpus=2", "--gpus-per-node=2", "--gres=gpu:a100:2",
		"-n4 --ntasks-per-gpu=2", "-n4 -c2 --ntasks-per-gpu=2"}
	for _, plain := range plainly {
		if said, err := take(plain, held(plain)); err != nil {
			t.Errorf("%s is refused: %v: %s", plain, err, said)
		}
	}
	field := regexp.MustCompile(`(TresPer\w+|AdminComment)=.*?( \w+=|$)`)
	shown := 0
	for job := range strings.Lines(c.sh("", "scontrol show -o job")) {
		m := regexp.MustCompile(`^JobId=(\d+) `).FindStringSubmatch(job)
		if m == nil || taken[m[1]] == "" {
			continue
		}
		shown++
		for range 3 {
			if booked(job) || !late(job) {
				break
			}
			id, _, err := c.run(alice, commands[m[1]])
			if err != nil {
				t.Errorf("%s is taken once and refused then", taken[m[1]])
				break
			}
			job = show(strings.TrimSpace(id))
		}
		if slices.Contains(plainly, taken[m[1]]) && count(job, "gpu") != 2 {
			t.Errorf("%s: slurmctld counts %d GPUs, want 2", taken[m[1]], count(job, "gpu"))
		}
		if !booked(job) {
			t.Errorf("%s: slurmctld counts %d GPUs, %d MiB are booked:\n%s", taken[m[1]], count(job, "gpu"),
				count(job, "carma"), strings.Join(field.FindAllString(job, -1), "\n"))
		}
	}
	if shown != len(taken) {
		t.Errorf("%d of %d jobs are shown", shown, len(taken))
	}
	t.Logf("%d requests: %d booked as slurmctld counts, %d refused", len(taken)+refused, len(taken), refused)
}
