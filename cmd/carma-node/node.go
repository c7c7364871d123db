// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/gres"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/gres/mps"
	"carma/gres/status"
	"carma/slurmbridge/config"
)

// otherNodes names the nodes of a machine with several slurmds that have a ledger, where
// the node looked for has none.
func otherNodes(c config.Config, node string) string {
	before, after, several := strings.Cut(c.Paths.RunDir, "%n")
	found, err := filepath.Glob(c.RunDir("*") + "/leases.db")
	if !several || err != nil || len(found) == 0 {
		return ""
	}
	for i, path := range found {
		found[i] = strings.TrimSuffix(strings.TrimPrefix(path, before), after+"/leases.db")
	}
	if slices.Contains(found, node) {
		return ""
	}
	return fmt.Sprintf(" This machine has the nodes %s; see --node", strings.Join(found, ", "))
}

// statusOf is a node's status from the ledger and the MPS daemons, with users' names by nameOf.
func statusOf(c config.Config, node string, s lease.Snapshot, nameOf func(uid uint32) string) status.Node {
	choose.CloseStale(s.Readings, choose.StaleAfter(c)) // of an agent that has died: nothing is known to be open
	n := status.Of(node, s, choose.FromConfig(c), c.Idle.After.D(), nameOf, daemonState(c, node))
	n.Mode = c.Mode
	n.WindowS, n.Statistic = c.SMAct.Window.D().Seconds(), c.SMAct.Statistic
	return n
}

func daemonState(c config.Config, node string) func(uuid string) status.MPS {
	return func(uuid string) status.MPS {
		if !c.MPS.Enabled {
			return status.MPSOff
		}
		if !mps.Listens(c.RunDir(node), gres.Daemon(uuid)) {
			return status.MPSDown
		}
		return status.MPSUp
	}
}

// userName is the name of an id, or the id: a directory service may hang, and neither an agent nor an administrator
// waits for its answer.
func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	name := make(chan string, 1)
	go func() {
		if u, err := lookupID(id); err == nil {
			name <- u.Username
		} else {
			name <- id
		}
	}()
	select {
	case found := <-name:
		return found
	case <-time.After(time.Second):
		return id
	}
}

var lookupID = user.LookupId // another in tests
