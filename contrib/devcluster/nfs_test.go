// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A home on NFS with root_squash, closed to all but its user: root cannot read there, and
// the Epilog reads what the job wrote all the same, with the user's rights.
func TestNFSHome(t *testing.T) {
	try := exec.Command("sh", "-c", "modprobe nfsd && modprobe nfsv4 && command -v exportfs rpc.nfsd rpc.mountd")
	if out, err := try.CombinedOutput(); err != nil {
		t.Skipf("no NFS server on this machine: %v: %s", err, out)
	}
	c := up(t, "--nodes", "1", "--time-scale", "20")
	export, home := filepath.Join(c.dir, "export"), filepath.Join(c.dir, "home")
	// nfsd keeps clients waiting while it lets old ones come back; there are none.
	c.sh("", "set -e; mkdir -m 755 "+export+" "+home+"; install -d -m 700 -o "+alice+" "+export+"/"+alice+
		"; mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd"+
		"; echo 10 >/proc/fs/nfsd/nfsv4leasetime; echo 10 >/proc/fs/nfsd/nfsv4gracetime"+
		"; exportfs -o rw,root_squash,no_subtree_check,fsid=0 127.0.0.1:"+export+"; rpc.mountd -N 3; rpc.nfsd -N 3 4"+
		"; mount -t nfs4 127.0.0.1:/ "+home)
	t.Cleanup(func() {
		stop := "umount " + home + "; rpc.nfsd 0; exportfs -u 127.0.0.1:" + export + "; kill $(pidof rpc.mountd)"
		if out, err := exec.Command("sh", "-c", stop).CombinedOutput(); err != nil {
			t.Errorf("stop NFS: %v: %s", err, out)
		}
	})
	dir := filepath.Join(home, alice)
	id := c.sbatch(alice, "--open-mode=append --chdir="+dir+" -o o.txt -e e.txt", oomOnce)
	c.ends(id, "COMPLETED")
	if _, err := os.ReadFile(filepath.Join(dir, "e.txt")); !os.IsPermission(err) {
		t.Errorf("root reads a home with root_squash: %v", err)
	}
	if text := c.sh(alice, "cat "+dir+"/e.txt"); text == "" {
		t.Error("the job wrote nothing")
	}
	if r := c.report(id); !r.OOM || r.RequeuedTo != "gpu-recovery" || r.Attempts != 2 {
		t.Errorf("report %+v", r)
	}
}
