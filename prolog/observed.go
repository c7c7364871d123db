// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"os/user"
	"strconv"
	"time"

	"carma/db"
	"carma/gres/lease"
	"carma/gres/output"
	"carma/prolog/evidence"
	"carma/prolog/userfile"
	"carma/slurmbridge/jobenv"
)

// Recorder makes the records of attempts that an agent has followed to their end without any hook.
type Recorder struct {
	Node    *Node
	Ledger  EpilogLedger
	Records Records
	User    func(ctx context.Context, uid uint32) (u userfile.User, known bool)
}

// Record is the record of an attempt. Of an attempt that failed on its own, the files are scanned to which the agent
// saw the attempt's processes write errors, as its user, as by an Epilog. Nothing is requeued.
func (r Recorder) Record(ctx context.Context, held lease.Held, exit jobenv.Exit, failed bool) db.Attempt {
	n, about := r.Node, r.Node.metaOf(held)
	h := jobenv.Hook{JobKey: held.JobKey, UID: held.UID, User: about.User, Partition: about.Partition, Node: n.Name,
		Exit: exit}
	var v verdict
	if failed && exit.Failed() {
		ep := &epilog{node: n, hook: h, held: held, about: about, ledger: r.Ledger, records: r.Records}
		v = ep.look(ctx, r.User)
	}
	if err := output.Drop(n.RunDir, held.JobKey); err != nil {
		n.Log.Warn("clean up", "job", held.JobKey, "error", err)
	}
	a := attempt(h, held, about, v, n.Config.Idle.After.D())
	if !exit.Failed() || !failed {
		a.State = db.NodeFail // until slurmctld's word
	}
	return a
}

// UserOf is the user of an id with the user's groups; the look-up may hang. known is false where nobody has the id.
func UserOf(ctx context.Context, uid uint32) (u userfile.User, known bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	done := make(chan *user.User, 1)
	go func() {
		found, _ := user.LookupId(strconv.FormatUint(uint64(uid), 10))
		done <- found
	}()
	select {
	case found := <-done:
		if found == nil {
			return u, false
		}
		gid, err := strconv.ParseUint(found.Gid, 10, 32)
		return userfile.User{UID: uid, GID: uint32(gid), Groups: Groups(ctx, found.Username, uint32(gid))}, err == nil
	case <-ctx.Done():
		return u, false
	}
}

// look decides by the evidence whether the attempt ran out of GPU memory.
func (ep *epilog) look(ctx context.Context, userOf func(context.Context, uint32) (userfile.User, bool)) (v verdict) {
	seen, err := output.Read(ep.node.RunDir, ep.hook.JobKey)
	if err != nil {
		ep.node.Log.Warn("scan stderr of the batch script only", "job", ep.hook.JobKey, "error", err)
	}
	var reply userfile.Reply // no file: as one that was not read
	as, known := userOf(ctx, ep.hook.UID)
	if ask := (userfile.Ask{Op: userfile.OpScan, Files: written(seen, "")}); known && len(ask.Files) > 0 {
		if reply, err = ep.node.AsUser(ctx, as, ask); err != nil {
			ep.node.Log.Warn("scan stderr", "job", ep.hook.JobKey, "error", err)
			reply = userfile.Reply{State: userfile.StateError}
		}
	}
	e := ep.evidence(ctx, reply, ep.lately(ctx))
	outcome := e.Decide()
	ep.node.Log.Info("judged the end of a job", "job", ep.hook.JobKey, "outcome", outcome, "text", e.Text,
		"signature", reply.Signature, "offset", reply.Offset, "memory", e.Memory, "neighbour", e.Neighbour)
	if outcome != evidence.Proven && outcome != evidence.Said {
		v.note = joined(noteOf(reply), e.Note())
		return v
	}
	if v.signature, v.note = reply.Signature, e.Note(); v.signature == "" {
		v.signature = bySight
	}
	return v
}

// written are the files to which the agent saw a job's processes write, but one.
func written(seen []output.File, but string) (files []userfile.File) {
	for _, f := range seen {
		if path := string(f.Path); path != but {
			files = append(files, userfile.File{Path: path, From: userfile.Mark{Exists: true, Dev: f.Dev, Ino: f.Ino,
				Size: f.Size}})
		}
	}
	return files
}
