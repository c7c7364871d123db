// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"carma/db"
	"carma/slurmbridge/usertext"
)

// Size is the size of like nodes. On the command line 0 means: as the records say.
type Size struct {
	Nodes     int
	GPUs      int // of one node
	GPUMemMiB int64
}

// node is a node as records and meters show the node.
type node struct {
	Size
	pool string // the partition that stands for its pool; empty: not known
}

// nodes returns the nodes with jobs, and those with meters alone.
func (r *Records) nodes(meters []db.Meter, size Size) (map[string]*node, error) {
	nodes, pools := map[string]*node{}, r.pools(size.Nodes > 0)
	of := func(name string) *node {
		if nodes[name] == nil {
			nodes[name] = &node{}
		}
		return nodes[name]
	}
	for _, m := range meters {
		// A GPU that was replaced keeps its meter, which stands still where those of others run.
		newer := func(o db.Meter) bool { return o.Node == m.Node && !o.At.Before(r.From) }
		if m.At.Before(r.From) && slices.ContainsFunc(meters, newer) {
			continue
		}
		n := of(usertext.Clean(m.Node)) // as in records
		n.GPUs, n.GPUMemMiB = n.GPUs+1, max(n.GPUMemMiB, m.TotalMiB)
	}
	used := map[string]map[string]bool{} // UUIDs of nodes without meters
	most := map[string]int{}             // GPUs of the fullest of these nodes, by pool
	for i := range r.runs {
		o := &r.runs[i]
		n := of(o.node)
		n.pool = pools[o.partition]
		if n.GPUs > 0 && used[o.node] == nil {
			continue
		}
		if used[o.node] == nil {
			used[o.node] = map[string]bool{}
		}
		for _, uuid := range o.uuids {
			used[o.node][uuid] = true
		}
		n.GPUMemMiB = max(n.GPUMemMiB, o.fullMiB)
		most[n.pool] = max(most[n.pool], len(used[o.node]))
	}
	for name := range used {
		nodes[name].GPUs = most[nodes[name].pool]
	}
	names := slices.Sorted(maps.Values(pools))
	for name, n := range nodes {
		if n.pool == "" && names[0] == names[len(names)-1] {
			n.pool = names[0]
		}
		n.GPUs, n.GPUMemMiB = cmp.Or(size.GPUs, n.GPUs), cmp.Or(size.GPUMemMiB, n.GPUMemMiB)
		if n.GPUMemMiB == 0 {
			return nil, fmt.Errorf("the records do not say how much memory the GPUs of node %s have; give --gpu-mem", name)
		}
	}
	return nodes, nil
}

// pools returns, for each partition, the first of all partitions with common nodes; all puts
// every partition into one pool.
func (r *Records) pools(all bool) map[string]string {
	parent := map[string]string{}
	root := func(p string) string {
		for parent[p] != p {
			p = parent[p]
		}
		return p
	}
	first := map[string]string{} // partition by node
	for i := range r.runs {
		o := &r.runs[i]
		if _, ok := parent[o.partition]; !ok {
			parent[o.partition] = o.partition
		}
		at := o.node
		if all {
			at = ""
		}
		if other, ok := first[at]; ok {
			a, b := root(other), root(o.partition)
			parent[max(a, b)] = min(a, b)
		} else {
			first[at] = o.partition
		}
	}
	for p := range parent {
		parent[p] = root(p)
	}
	return parent
}

// kinds puts like nodes together, and each job to the nodes where the job ran.
func (r *Records) kinds(nodes map[string]*node, size Size, u *Unknown) (map[string]*Pool, error) {
	pools := map[string]*Pool{}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		n := nodes[name]
		if n.pool == "" {
			u.IdleNodes++
			continue
		}
		if pools[n.pool] == nil {
			pools[n.pool] = &Pool{}
		}
		k := pools[n.pool].kind(n.Size)
		if k.Nodes++; size.Nodes > 0 {
			k.Nodes = size.Nodes
		}
	}
	for _, p := range pools {
		if size.Nodes > 0 && len(p.Kinds) > 1 {
			return nil, errors.New("--nodes: the nodes of the records differ in their GPUs; give --gpus and --gpu-mem, too")
		}
	}
	for i := range r.runs {
		o := &r.runs[i]
		n := nodes[o.node]
		if o.gpus > n.GPUs || o.peakMiB > n.GPUMemMiB {
			u.TooLarge.add(o.runS * float64(o.gpus))
			continue
		}
		p := pools[n.pool]
		if !slices.Contains(p.Partitions, o.partition) {
			p.Partitions = append(p.Partitions, o.partition)
		}
		k := p.kind(n.Size)
		k.runs = append(k.runs, o)
	}
	return pools, nil
}

// Pool is partitions with common nodes. Two pools have no node in common, so each can share
// or not, whatever the other does.
type Pool struct {
	Partitions []string
	Kinds      []*Kind
	gpuS       float64
}

// Name is how people call the pool.
func (p *Pool) Name() string { return strings.Join(p.Partitions, ",") }

// Size is the pool's number of nodes, GPUs of all of them, and jobs on nodes.
func (p *Pool) Size() (nodes, gpus, jobs int) {
	for _, k := range p.Kinds {
		nodes, gpus, jobs = nodes+k.Nodes, gpus+k.Nodes*k.GPUs, jobs+len(k.runs)
	}
	return nodes, gpus, jobs
}

// kind is the pool's kind of this size, a new one if there is none.
func (p *Pool) kind(s Size) *Kind {
	for _, k := range p.Kinds {
		if k.GPUs == s.GPUs && k.GPUMemMiB == s.GPUMemMiB {
			return k
		}
	}
	k := &Kind{Size: Size{GPUs: s.GPUs, GPUMemMiB: s.GPUMemMiB}}
	p.Kinds = append(p.Kinds, k)
	return k
}
