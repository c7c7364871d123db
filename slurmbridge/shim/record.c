/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What slurmctld knows of a job that is to be changed. job_modify() gets the change
 * alone, and a record whose layout is private: no public header has it, and it
 * moves with releases. slurmctld's own job_common_env_vars() reads it for us: it
 * makes what PrologSlurmctld and MailProg get to see of a job, spank_job_env
 * included, is exported to plugins, and has had one form from 22.05 to 26.05. It
 * takes no lock, needs the job lock that the caller of a plugin holds, opens no file;
 * up to 23.02 it looks up the names of user and group.
 *
 * Weighed and left: copy_job_record_to_job_desc() would show the GRES lists too, but
 * follows a pointer that is NULL for jobs that were not tried yet, and reads the
 * script; an RPC is not allowed under slurmctld's locks; ids that the shim remembers
 * are gone with a restart, and job_submit() does not know them; refusing all changes
 * of GPUs by users would take them from partitions that are none of CARMA's.
 */
#include <dlfcn.h>
#include <string.h>

#include <slurm/slurm.h>

#include "job.h"

static char **(*env_of)(job_record_t *record, bool is_complete);
static char **default_part_name;
static bool (*constraints)(void);
static bool (*operates)(uid_t uid);

void record_init(void)
{
	*(void **)&env_of = dlsym(RTLD_DEFAULT, "job_common_env_vars");
	default_part_name = dlsym(RTLD_DEFAULT, "default_part_name");
	*(void **)&constraints = dlsym(RTLD_DEFAULT, "extra_constraints_enabled");
	*(void **)&operates = dlsym(RTLD_DEFAULT, "validate_operator");
}

bool record_constrains(void)
{
	return HAS_EXTRA && constraints && constraints();
}

/* AdminLevel of the accounting database, as slurmctld itself asks for it when a job is changed. */
bool record_operates(uint32_t uid)
{
	return operates && operates((uid_t)uid);
}

char *record_value(job_record_t *record, const char *name)
{
	size_t len = strlen(name);
	char **env, *found = NULL;

	if (!env_of || !record || !(env = env_of(record, false)))
		return NULL;
	for (char **entry = env; *entry; entry++) {
		if (!found && !strncmp(*entry, name, len) && (*entry)[len] == '=')
			found = slurm_xstrdup(*entry + len + 1);
		slurm_xfree((void **)entry);
	}
	slurm_xfree((void **)&env);
	return found;
}

const char *record_default_partition(void)
{
	return default_part_name ? *default_part_name : NULL;
}

/* The shim alone writes entries of these names (spank.c). */
enum booking record_booking(job_record_t *record)
{
	bool booked = false, by_nodes = false;
	char **env;

	if (!env_of || !record || !(env = env_of(record, false)))
		return UNKNOWN;
	for (char **entry = env; *entry; entry++) {
		booked |= !strncmp(*entry, "SPANK_CARMA_V=", 14);
		by_nodes |= !strncmp(*entry, "SPANK_CARMA_NODES=", 18);
		slurm_xfree((void **)entry);
	}
	slurm_xfree((void **)&env);
	return !booked ? NO_BOOKING : by_nodes ? BOOKED_BY_NODES : BOOKED;
}
