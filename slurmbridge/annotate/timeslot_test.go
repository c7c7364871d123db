// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"strings"
	"testing"
	"time"

	"carma/slurmbridge/config"
	"carma/slurmbridge/directive"
	"carma/slurmbridge/jobenv"
)

func TestTimeSlot(t *testing.T) {
	const infinite = 0xffffffff
	s := site()
	p := s.Partitions["gpu"]
	p.TimeSlot = config.Duration(4 * time.Hour)
	s.Partitions["slots"] = p
	for _, c := range []struct {
		name, partition, script string
		limit, want             uint32
		requeue                 bool
		advice, refused         string
	}{
		{"no slots", "gpu", "#CARMA on\n", NoVal, 0, false, "", ""},
		{"no slots to be requeued for", "gpu", "\n#CARMA requeue=timeout\n", NoVal, 0, false, "",
			"line 2: requeue: partition gpu has no time slots"},
		{"no limit", "slots", "", NoVal, 240, false, "", ""},
		{"no limit, as a program may say it", "slots", "", 0, 240, false, "", ""},
		{"no limit, is requeued", "slots", "#CARMA requeue=timeout\n", NoVal, 240, true, "", ""},
		{"shorter", "slots", "#CARMA requeue=timeout\n", 30, 0, true, "", ""},
		{"just as long", "slots", "", 240, 0, false, "", ""},
		{"longer", "slots", "#CARMA on\n", 1440, 240, false, "slots of 4:00:00: the time limit is cut", ""},
		{"longer, is requeued", "slots", "#CARMA requeue=timeout\n", 1440, 240, true, "", ""},
		{"no requeue, and no slots", "gpu", "#CARMA requeue=no\n", NoVal, 0, false, "", ""},
		{"longer, no requeue", "slots", "#CARMA requeue=no\n", 1440, 240, false, "slots of 4:00:00: the time limit is cut",
			""},
		{"without end", "slots", "#CARMA requeue=timeout\n", infinite, 240, true, "", ""},
	} {
		j := job(c.script)
		j.Partition, j.TRES.PerNode, j.TimeLimit = c.partition, "gres:gpu:1", c.limit
		a, err := s.Annotate(j)
		if c.refused != "" {
			if err == nil || err.Error() != c.refused {
				t.Errorf("%s: %v, want %s", c.name, err, c.refused)
			}
			continue
		}
		if err != nil || a.TimeLimitMin != c.want || (a.Requeue == jobenv.RequeueTimeout) != c.requeue ||
			!strings.Contains(a.Advice, c.advice) || (c.advice == "") != (a.Advice == "") {
			t.Errorf("%s: %v %+v", c.name, err, a)
		}
		if strings.Contains(string(a.AppendEnv(nil, "", " ")), "REQUEUE=timeout") != c.requeue {
			t.Errorf("%s: %v", c.name, a.AppendEnv(nil, "", " "))
		}
		if (a.Requeue == jobenv.RequeueNo) != strings.Contains(c.script, "requeue=no") {
			t.Errorf("%s: %q", c.name, a.Requeue)
		}
	}
}

// A site that takes no offence at wrong lines takes none at this one.
func TestTimeSlotIgnored(t *testing.T) {
	s := site()
	s.IgnoreBad = true
	j := job("#CARMA requeue=timeout signal=B:USR2@30\n")
	j.TRES.PerNode = "gres:gpu:1"
	a, err := s.Annotate(j)
	want := directive.Signal{Number: 12, Seconds: 30, Batch: true}
	if err != nil || a.Requeue != "" || a.Signal != want {
		t.Errorf("%v %+v", err, a)
	}
}
