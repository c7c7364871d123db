// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"carma/slurmbridge/extra"
)

const extraConstraints = "extra_constraints"

// publishes tells whether this Slurm compares a job's --extra with a node's Extra for srun and
// salloc, too: then nodes publish there how much their GPUs can give (docs/adr/0017).
func (d *diagnosis) publishes() bool {
	return d.Installed.Publishes() && has(d.setting("SchedulerParameters"), extraConstraints)
}

// capacity tells how slurmctld knows what the GPUs can give, and what prevents it.
func (d *diagnosis) capacity() {
	v := d.Installed
	if v.Before(22, 5) {
		return // said
	}
	const fine = "stands in the nodes' Extra: a job starts where a GPU has room"
	d.part("capacity", fine, func(say func(Level, string, string)) {
		const instead = ": slots and carma alone bound what slurmctld starts, and the Prolog lets a job wait, or returns it"
		switch {
		case !v.Publishes():
			say(Warn, "Slurm "+versionText(v)+" is not told what the GPUs can give"+instead, "update Slurm to 24.11 or later")
			return
		case !d.publishes():
			say(Warn, "SchedulerParameters lacks "+extraConstraints+instead, "add "+extraConstraints+" to SchedulerParameters. "+
				"It makes a constraint of every job's --extra: a site that has text there uses --comment from then on")
			return
		}
		if d.ExtrasErr != nil {
			say(Fail, "what the nodes tell in Extra is not known: "+d.ExtrasErr.Error(), "run it again when slurmctld answers")
		}
		for _, name := range slices.Sorted(maps.Keys(d.Extras)) {
			if _, err := extra.Counts(d.Extras[name]); err != nil {
				say(Fail, name+": "+err.Error(), "scontrol update NodeName="+name+" Extra=, or a JSON object there")
			}
		}
		d.userKey(say)
	})
}

// userKey looks at whether the site hides where users' jobs run: every user can read the
// nodes' Extra.
func (d *diagnosis) userKey(say func(Level, string, string)) {
	key := d.UserKey
	if d.Config.Slurm.UserKey == "" {
		if has(d.setting("PrivateData"), "jobs") {
			say(Warn, "PrivateData hides jobs, but a node's Extra names by uid the users who have GPUs there",
				"slurm.user_key in "+cmp.Or(d.ConfigPath, "carma.toml")+" (docs/slurm-conf.md)")
		}
		return
	}
	owner := "root on nodes, SlurmUser on the controller"
	switch {
	case key.Err != nil:
		say(Fail, "slurm.user_key: "+key.Err.Error(), "make it, the same on controller and nodes, for "+owner)
	case key.Mode.Perm()&0o077 != 0:
		say(Fail, key.Path+" can be read by others: its secret names the users in the nodes' Extra", "chmod 400 "+key.Path)
	case key.UID != 0 && key.UID != slurmUID(d.Running["slurmuser"]):
		say(Fail, key.Path+" belongs to a user: its secret names the users in the nodes' Extra", "chown it to "+owner)
	}
}

// slurmUID is SlurmUser's, which slurmctld shows as "slurm(64030)"; 0: not known, or root's.
func slurmUID(user string) uint32 {
	_, id, _ := strings.Cut(user, "(")
	return uint32(number(strings.TrimSuffix(id, ")")))
}
