/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Control characters in the texts of a job. Slurm prints a job's texts as they are:
 * one with a line break forges lines of squeue and of scontrol, for any program
 * and any person that reads them, and an escape sequence writes on the terminal of
 * who looks. Bytes from 0x80 on are UTF-8 and stay.
 *
 * Every text is checked that a user gives and that squeue, scontrol show job or
 * sacct print in a line, whether CARMA asks for it today or not. Not checked:
 * - script, environment, argv: free text by nature; no question of CARMA's prints
 *   them
 * - submit_line: repeats argv, and sbatch --wrap has line breaks there
 * - spank_job_env: an environment as well
 * - burst_buffer: the script's #BB lines, with line breaks between
 * - admin_comment: refused from users by slurmctld itself; a site's own plugin may
 *   have written lines there
 * - x11_*, alloc_tls_cert: secrets and certificates, which are not printed
 */
#include <stddef.h>

#include <slurm/slurm.h>

#include "job.h"

#define FIELD(name, what) { what, offsetof(job_desc_msg_t, name) }

static const struct {
	const char *what;
	size_t at;
} texts[] = {
	FIELD(account, "account"),
	FIELD(acctg_freq, "accounting frequency"),
	FIELD(alloc_node, "submitting host"),
	FIELD(array_inx, "array"),
	FIELD(batch_features, "batch features"),
	FIELD(cluster_features, "cluster features"),
	FIELD(clusters, "list of clusters"),
	FIELD(comment, "comment"),
	FIELD(container, "container"),
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 2, 0)
	FIELD(container_id, "container id"),
#endif
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
	FIELD(container_type, "container type"),
#endif
	FIELD(cpu_bind, "CPU binding"),
	FIELD(cpus_per_tres, "CPUs per GPU"),
	FIELD(dependency, "dependency"),
	FIELD(exc_nodes, "list of excluded nodes"),
	FIELD(extra, "extra text"),
	FIELD(features, "constraint"),
	FIELD(licenses, "licenses"),
	FIELD(mail_user, "mail address"),
	FIELD(mcs_label, "MCS label"),
	FIELD(mem_bind, "memory binding"),
	FIELD(mem_per_tres, "memory per GPU"),
	FIELD(name, "name"),
	FIELD(network, "network"),
	FIELD(origin_cluster, "cluster of origin"),
	FIELD(partition, "partition"),
	FIELD(prefer, "preferred features"),
	FIELD(qos, "QOS"),
	FIELD(req_context, "SELinux context"),
	FIELD(req_nodes, "list of nodes"),
	FIELD(reservation, "reservation"),
	FIELD(resp_host, "answering host"),
	FIELD(selinux_context, "SELinux context"),
	FIELD(std_err, "path of stderr"),
	FIELD(std_in, "path of stdin"),
	FIELD(std_out, "path of stdout"),
	FIELD(tres_bind, "TRES binding"),
	FIELD(tres_freq, "GPU frequency"),
	FIELD(tres_per_job, "GRES of the job"),
	FIELD(tres_per_node, "GRES of a node"),
	FIELD(tres_per_socket, "GRES of a socket"),
	FIELD(tres_per_task, "GRES of a task"),
	FIELD(wckey, "wckey"),
	FIELD(work_dir, "working directory"),
};

/* All of a job's texts together. slurmctld takes up to 128 KiB of one, but looks at the lengths later, and has a change
 * of an array checked here for each of its tasks, under its locks. */
#define MOST_BYTES (512 << 10)

const char *text_with_control(const job_desc_msg_t *job, unsigned *byte)
{
	size_t left = MOST_BYTES;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		const unsigned char *c = *(const unsigned char *const *)((const char *)job + texts[i].at);

		for (; c && *c; c++, left--) {
			if (!left || *c < 0x20 || *c == 0x7f) {
				*byte = left ? *c : 0;
				return texts[i].what;
			}
		}
	}
	return NULL;
}
