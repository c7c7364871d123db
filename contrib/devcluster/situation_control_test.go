// SPDX-License-Identifier: Apache-2.0

//go:build integration && situations

package devcluster_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
)

// Situations of controllers, clusters and logins (docs/situations.md).

// A login by a real sshd and Slurm's pam_slurm_adopt goes into the user's job: it opens the
// job's GPUs and no other, and ends with it. Who has no job on the node is turned away.
func TestSituationAdoptedLogin(t *testing.T) {
	if os.Getenv("SLURM_PREFIX") != "" {
		t.Skip("pam_slurm_adopt is of one release of Slurm, and Debian has that of its own")
	}
	c := confined(t, "--time-scale", "10")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	etc := c.dir + "/etc/"
	for name, text := range map[string]string{
		"pam": "auth required pam_permit.so\naccount required pam_slurm_adopt.so nodename=n1 log_level=debug\n" +
			"session required pam_permit.so\n",
		"sshd_config": "ListenAddress 127.0.0.1\nPort " + port + "\nHostKey " + etc + "key\nUsePAM yes\nStrictModes no\n" +
			"PidFile none\nAuthorizedKeysFile " + etc + "key.pub\n",
	} {
		if err := os.WriteFile(etc+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c.sh("", "ssh-keygen -q -t ed25519 -N '' -f "+etc+"key; mkdir -p -m 755 /run/sshd\n"+
		"unshare --mount bash -c 'mount --bind "+etc+"pam /etc/pam.d/sshd; exec /usr/sbin/sshd -D -e -f "+etc+
		"sshd_config' >"+c.dir+"/log/sshd 2>&1 </dev/null & "+c.remember("sshd", "$!"))
	t.Cleanup(func() { c.run("", "read -r pid _ <"+c.dir+"/pid/sshd; kill $pid") })
	login := func(user, command string) (string, error) {
		out, _, err := c.run("", "ssh -n -p "+port+" -i "+etc+"key -o StrictHostKeyChecking=no "+
			"-o UserKnownHostsFile=/dev/null "+user+"@127.0.0.1 '"+command+"'")
		return strings.TrimSpace(out), err
	}
	job := func(user string) string {
		id := c.sbatch(user, "", "#SBATCH --gres=gpu:1\n#CARMA mem=6G\necho gpu=$CUDA_VISIBLE_DEVICES\nexec sleep 1h\n")
		c.gpu(id)
		return id
	}
	opens := c.dir + "/bin/simgpu devices " + c.dir + "/dev/n1"
	alices, bobs := job(alice), job(bob)
	for id, user := range map[string]string{alices: alice, bobs: bob} {
		var got string
		c.eventually(func() string { got, err = login(user, opens); return fmt.Sprint(err) }, "^<nil>$")
		if want := c.leased(id); got != want {
			t.Errorf("a login of %s opens %s, the job was leased %s", user, got, want)
		}
	}
	if out, err := login(carol, opens); err == nil {
		t.Errorf("a login without a job on the node opens %s", out)
	}
	ended := make(chan error, 1)
	go func() { _, err := login(alice, "touch "+c.dir+"/jobs/in; exec sleep 1h"); ended <- err }()
	c.eventually(func() string { return c.sh("", "ls "+c.dir+"/jobs") }, "(?m)^in$")
	c.sh(alice, "scancel "+alices)
	c.ends(alices, "CANCELLED")
	if err := <-ended; err == nil {
		t.Error("a login outlived its job")
	}
	c.sh(bob, "scancel "+bobs)
	c.ends(bobs, "CANCELLED")
	c.eventually(func() string { return c.leases("n1") }, "^$")
	c.noDrain()
}

// Two clusters with one slurmdbd: jobs that are submitted with -M are booked, leased and
// requeued by the cluster that runs them. A federation of them is refused by the doctor: its
// jobs are booked and leased where they run, and not requeued.
func TestSituationClusters(t *testing.T) {
	needsMySQL(t)
	c := up(t, "--nodes", "1", "--slurmdbd")
	second := up(t, "--nodes", "1")
	second.env = append(second.env, "SQUEUE_LOCAL=1") // a sibling's job, and not the origin's view of it
	second.end("agent.n1", "slurmd.n1", "slurmctld")
	users := alice + "," + bob + "," + carol
	c.sh("", "sacctmgr -iQ add cluster second\n"+
		"sacctmgr -iQ add account ml Description=ml Organization=carma Cluster=second\n"+
		"sacctmgr -iQ add user "+users+" Account=ml Cluster=second\n"+
		"port=$(sed -n s/^AccountingStoragePort=//p $SLURM_CONF); sed -i \"s/^ClusterName=.*/ClusterName=second/\n"+
		"s#socket=[^,]*#socket="+c.dir+"/munge/s#\ns#^AccountingStorageType=.*#AccountingStorageType="+
		"accounting_storage/slurmdbd\\nAccountingStorageHost=127.0.0.1\\nAccountingStoragePort=$port\\n"+
		"AccountingStoragePass="+c.dir+"/munge/s#\" "+second.dir+"/etc/slurm.conf; rm -rf "+second.dir+"/state/*")
	second.restart("slurmctld")
	second.restart("slurmd")
	second.restart("agent")
	second.eventually(func() string { return second.sh("", "sinfo -h -N -n n1 -p plain -o %T") }, "^idle$")
	second.eventually(func() string { return second.gres("n1") }, idleNode)
	c.eventually(func() string { out, _, _ := c.run("", "squeue -M second"); return out }, "JOBID")

	ends := func(id, state string) {
		t.Helper()
		second.ends(id, state)
		second.eventually(func() string { return second.leases("n1") }, "^$")
	}
	id := c.sbatch(alice, "-M second", train("10G", "1s"))
	ends(id, "COMPLETED")
	if r := second.report(id); r.State != "COMPLETED" || r.ReserveMiB != 10240 {
		t.Errorf("-M: %+v", r)
	}
	id = c.sbatch(alice, "-M second", oomOnce)
	ends(id, "COMPLETED")
	if r := second.report(id); !r.OOM || r.Attempts != 2 {
		t.Errorf("-M, out of GPU memory: %+v", r)
	}

	doctor := func() string { out, _, _ := second.run("", "carma-node doctor --controller"); return out }
	if out := doctor(); strings.Contains(out, "federation") {
		t.Errorf("the doctor says\n%s", out)
	}
	c.sh("", "sacctmgr -iQ add federation sites clusters=carma,second")
	c.eventually(func() string { return c.sh("", "scontrol show federation") }, "Synced:Yes")
	c.eventually(doctor, "is of federation sites")
	full := c.sbatch(bob, "--clusters=carma", "#SBATCH --gres=gpu:4\n#CARMA policy=exclusive\nexec sleep 1h\n")
	c.eventually(func() string { return c.job(full, "%T") }, "RUNNING")
	id = c.sbatch(alice, "", train("10G", "1s"))
	ends(id, "COMPLETED")
	if r := second.report(id); r.State != "COMPLETED" || r.ReserveMiB != 10240 {
		t.Errorf("as a sibling: %+v", r)
	}
	id = c.sbatch(alice, "", oomOnce)
	ends(id, "FAILED")
	if r := second.report(id); !r.OOM || r.Attempts != 1 {
		t.Errorf("as a sibling, out of GPU memory: %+v", r)
	}
	c.sh("", "scancel "+full)
	c.eventually(func() string { return c.leases("n1") }, "^$")
	c.noDrain()
	second.noDrain()
}
