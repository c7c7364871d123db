// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"

	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/slurmconf"
	"carma/slurmbridge/tres"
)

// shape is what slurmctld asks of a node besides GPUs: what an anchor has less of than the nodes,
// jobs that need it are refused while the nodes are full.
type shape struct {
	cpus, sockets, cores, threads int64
	memory, tmpDisk               int64
	gres                          []tres.Entry // neither GPUs nor CARMA's
}

// shapeOf reads a node's line as slurmctld does (read_config.c, _parse_nodename(), 22.05).
func shapeOf(n slurmconf.Record) shape {
	or1 := func(key string) int64 { return max(1, number(n.Get(key))) }
	s := shape{cpus: number(n.Get("CPUs")), sockets: number(n.Get("Sockets")), cores: or1("CoresPerSocket"),
		threads: or1("ThreadsPerCore"), memory: or1("RealMemory"), tmpDisk: number(n.Get("TmpDisk")),
		gres: otherGRES(n.Get("Gres"))}
	core := s.cores * s.threads
	switch boards := or1("Boards"); {
	case n.Get("SocketsPerBoard") != "":
		s.sockets = boards * or1("SocketsPerBoard")
	case s.sockets > 0:
	case s.cpus >= core && s.cpus%core == 0:
		s.sockets = s.cpus / core
	default:
		s.sockets = boards
	}
	if s.cpus != s.sockets && s.cpus != s.sockets*s.cores {
		s.cpus = s.sockets * core
	}
	return s
}

// otherGRES are the entries of a node's Gres that are not for GPUs.
func otherGRES(list string) (other []tres.Entry) {
	for e := range tres.Parse(list) {
		if e.Name != tres.GPU && e.Name != tres.Shard && e.Name != tres.Total && tres.K(e.Name) == 0 {
			other = append(other, e)
		}
	}
	return other
}

// kindOf is what a job asks for: "bandwidth:lustre" of bandwidth:lustre:no_consume:4G.
func kindOf(e tres.Entry) string {
	kind := strings.TrimSuffix(e.Type, tres.NoConsume)
	return strings.TrimSuffix(e.Name+":"+strings.TrimSuffix(kind, ":"), ":")
}

// countOf is how much of a kind the shape has.
func (s shape) countOf(kind string) (n int64) {
	for _, e := range s.gres {
		if kindOf(e) == kind {
			n += e.Count
		}
	}
	return n
}

// covering is the shape of an anchor that has of everything as much as each of the lines, and at
// least so many CPUs: by sockets, so that jobs get what they ask for of each.
func covering(lines []slurmconf.Record, cpus int64) shape {
	all := shape{cores: 1, threads: 1, memory: 1}
	for _, n := range lines {
		s := shapeOf(n)
		all.cpus, all.sockets = max(all.cpus, s.cpus), max(all.sockets, s.sockets)
		all.cores, all.threads = max(all.cores, s.cores), max(all.threads, s.threads)
		all.memory, all.tmpDisk = max(all.memory, s.memory), max(all.tmpDisk, s.tmpDisk)
		for _, e := range s.gres {
			at := slices.IndexFunc(all.gres, func(had tres.Entry) bool { return kindOf(had) == kindOf(e) })
			if at < 0 {
				all.gres = append(all.gres, e)
			} else if all.gres[at].Count < e.Count {
				all.gres[at] = e
			}
		}
	}
	socket := all.cores
	if all.cpus > all.sockets*all.cores { // else the site counts a core as one CPU
		socket *= all.threads
	}
	all.sockets = max(all.sockets, (max(all.cpus, cpus)+socket-1)/socket)
	all.cpus = all.sockets * socket
	return all
}

// words are those of a NodeName line, without Gres.
func (s shape) words() string {
	words := fmt.Sprintf("CPUs=%d", s.cpus)
	if s.cores*s.threads > 1 {
		words += fmt.Sprintf(" Sockets=%d CoresPerSocket=%d ThreadsPerCore=%d", s.sockets, s.cores, s.threads)
	}
	words += fmt.Sprintf(" RealMemory=%d", s.memory)
	if s.tmpDisk > 0 {
		words += fmt.Sprintf(" TmpDisk=%d", s.tmpDisk)
	}
	return words
}

// behindAnchor are the lines of the nodes that share a partition with an anchor, but for one list.
func (s Site) behindAnchor() (lines []slurmconf.Record) {
	for _, n := range s.SlurmConf.Nodes {
		if isAnchor(n) || hostlist.Same(n.Name, s.Nodes) {
			continue
		}
		first := hostlist.First(n.Name)
		if slices.ContainsFunc(s.SlurmConf.Partitions, func(p slurmconf.Record) bool {
			return inPartition(p, anchorName) && inPartition(p, first)
		}) {
			lines = append(lines, n)
		}
	}
	return lines
}

// shapes tells what the anchors lack beside the nodes of CARMA's partitions.
func (d *diagnosis) shapes(say func(Level, string, string)) {
	var nodes []slurmconf.Record
	for _, name := range d.Config.PartitionNames() {
		lines, _, _ := d.nodesOf(name)
		nodes = append(nodes, lines...)
	}
	want := covering(nodes, 0)
	for _, anchor := range d.SlurmConf.Nodes {
		if !isAnchor(anchor) {
			continue
		}
		has := shapeOf(anchor)
		for _, n := range nodes {
			needs := shapeOf(n)
			for _, v := range []struct {
				key        string
				has, needs int64
			}{
				{"CPUs", has.cpus, needs.cpus}, {"Sockets", has.sockets, needs.sockets},
				{"CoresPerSocket", has.cores, needs.cores}, {"ThreadsPerCore", has.threads, needs.threads},
				{"RealMemory", has.memory, needs.memory}, {"TmpDisk", has.tmpDisk, needs.tmpDisk},
			} {
				if v.has < v.needs {
					say(Fail, fmt.Sprintf("%s has %s=%d, node %s has %d: jobs that need more are refused while nodes are full",
						anchor.Name, v.key, v.has, n.Name, v.needs), want.words()+" or more for the anchors")
				}
			}
			for _, e := range needs.gres {
				kind := kindOf(e)
				if n := has.countOf(kind); n < needs.countOf(kind) {
					say(Fail, fmt.Sprintf("%s has %s:%d, nodes have %d: jobs that need more are refused while nodes are full",
						anchor.Name, kind, n, needs.countOf(kind)), "add "+e.String()+" to Gres= of the anchors")
				}
			}
		}
	}
}
