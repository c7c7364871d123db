// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// The lines are squeue's and sinfo's of Slurm 22.05.8.
func TestQueue(t *testing.T) {
	c := client(t, map[string]string{"squeue": `cat <<'TEXT'
2|PENDING|gpu|Resources|4294901759|1795257543|N/A|||N/A|(null)|gres:gpu:2,gres:carma2:40536,gres:carmatotal:81072
1|RUNNING|gpu|None|4294901760|1795257500|1795261143|n1||N/A|(null)|gres:gpu:1,gres:carma:10240,gres:carmatotal:10240
9|PENDING|gpu|Priority|4294901750|1795257543|N/A||n[1-2]|3|bigmem|gres:gpu:1
text without fields
x|PENDING|gpu|Priority|4294901750|N/A|N/A||||(null)|gres:gpu:1
TEXT
`})
	got, err := c.Queue(t.Context(), []string{"gpu", "recovery"})
	want := []QueuedJob{
		{ID: 2, State: "PENDING", Partition: "gpu", Reason: "Resources", Priority: 4294901759, Eligible: time.Unix(1795257543, 0), TresPerNode: "gres:gpu:2,gres:carma2:40536,gres:carmatotal:81072"},
		{ID: 1, State: "RUNNING", Partition: "gpu", Reason: "None", Priority: 4294901760, Eligible: time.Unix(1795257500, 0), End: time.Unix(1795261143, 0), Nodes: "n1", TresPerNode: "gres:gpu:1,gres:carma:10240,gres:carmatotal:10240"},
		{ID: 9, State: "PENDING", Partition: "gpu", Reason: "Priority", Priority: 4294901750, Eligible: time.Unix(1795257543, 0), ReqNodes: "n[1-2]", Array: true, Features: "bigmem", TresPerNode: "gres:gpu:1"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if text := calls(t, c); !strings.Contains(text, "--partition=gpu,recovery ") {
		t.Errorf("calls: %s", text)
	}
	if _, err := client(t, map[string]string{"squeue": "exit 1"}).Queue(t.Context(), nil); err == nil {
		t.Error("squeue failed: no error")
	}
}

func TestNodes(t *testing.T) {
	c := client(t, map[string]string{"scontrol": "", "sinfo": `cat <<'TEXT'
carma-anchor|gpu*|down|gpu:16,carma:40536|(null)
n1|gpu*|mix|gpu:a100:16(S:0),carma:10K,carma2:40536|carma-hold=7:2:1795257543
n1|recovery|mix|gpu:a100:16(S:0),carma:10K,carma2:40536|carma-hold=7:2:1795257543
n2|gpu*|idle*|gpu:16|(null)
text without fields
TEXT
`})
	got, err := c.Nodes(t.Context(), []string{"gpu", "recovery"})
	want := []NodeState{
		{Name: "carma-anchor", Partitions: []string{"gpu"}, GPUs: 1, Comment: "(null)"},
		{Name: "n1", Partitions: []string{"gpu", "recovery"}, Up: true, GPUs: 2, Comment: "carma-hold=7:2:1795257543"},
		{Name: "n2", Partitions: []string{"gpu"}, Comment: "(null)"}, // idle*: does not answer
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := c.SetNodeComment(t.Context(), "n1", "rack 4"); err != nil {
		t.Error(err)
	}
	if text := calls(t, c); !strings.Contains(text, "scontrol update NodeName=n1 Comment=rack 4 ") {
		t.Errorf("calls: %s", text)
	}
}
