/* SPDX-License-Identifier: Apache-2.0 */
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "limits.h"

bool limit_is_cgroup(const char *dir, uint32_t *root)
{
	char path[SIM_GROUP_PATH];
	struct statfs fs;
	struct stat own, above;
	size_t n = strlen(dir);

	if (dir[0] != '/' || n >= sizeof(path) || statfs(dir, &fs) != 0 || fs.f_type != CGROUP2_SUPER_MAGIC ||
	    stat(dir, &own) != 0 || !S_ISDIR(own.st_mode))
		return false;
	memcpy(path, dir, n + 1);
	for (*root = (uint32_t)n;; *root = (uint32_t)strlen(path)) {
		char *slash = strrchr(path, '/');

		if (slash == path || slash == NULL)
			return true;
		*slash = '\0';
		if (stat(path, &above) != 0 || above.st_dev != own.st_dev)
			return true;
	}
}

static bool stands(const struct sim_limit *l)
{
	struct stat st;

	return l->dir[0] != '\0' && stat(l->dir, &st) == 0 && st.st_ino == l->ino;
}

const struct sim_limit *limit_get(const struct sim_snap *s, uint32_t gpu, const char *dir)
{
	for (uint32_t i = 0; i < SIM_MAX_LIMITS; i++)
		if (s->limit[i].gpu == gpu && strcmp(s->limit[i].dir, dir) == 0 && stands(&s->limit[i]))
			return &s->limit[i];
	return NULL;
}

bool limit_set(struct sim_snap *s, uint32_t gpu, const char *dir, uint32_t root, uint64_t soft, uint64_t hard)
{
	struct sim_limit *place = (struct sim_limit *)limit_get(s, gpu, dir);
	struct stat st;

	for (uint32_t i = 0; place == NULL && i < SIM_MAX_LIMITS; i++)
		if (!stands(&s->limit[i]))
			place = &s->limit[i];
	if (place == NULL)
		return false;
	*place = (struct sim_limit){ .gpu = gpu, .root = root, .soft = soft, .hard = hard };
	if ((hard != UINT64_MAX || soft != 0) && stat(dir, &st) == 0) {
		place->ino = st.st_ino;
		snprintf(place->dir, sizeof(place->dir), "%s", dir);
	}
	return true;
}

/* The cgroup v2 of a process, below the hierarchy's root; "" if it is gone. */
static void group_of(int pid, char *group, size_t size)
{
	char path[32], line[SIM_GROUP_PATH + 8];
	FILE *f;

	group[0] = '\0';
	snprintf(path, sizeof(path), "/proc/%d/cgroup", pid);
	f = fopen(path, "re");
	if (f == NULL)
		return;
	while (fgets(line, sizeof(line), f) != NULL) {
		if (strncmp(line, "0::", 3) != 0)
			continue;
		size_t n = strcspn(line + 3, "\n");

		if (n < size) {
			memcpy(group, line + 3, n);
			group[n] = '\0';
		}
	}
	fclose(f);
}

static const struct sim_limit *nearest(const struct sim_snap *s, uint32_t gpu, int pid)
{
	char group[SIM_GROUP_PATH];
	const struct sim_limit *best = NULL;
	size_t longest = 0;

	group_of(pid, group, sizeof(group));
	for (uint32_t i = 0; i < SIM_MAX_LIMITS; i++) {
		const struct sim_limit *l = &s->limit[i];
		const char *inner = l->dir + l->root;
		size_t n = strlen(inner);

		if (l->dir[0] == '\0' || l->gpu != gpu || n < longest || strncmp(group, inner, n) != 0 ||
		    (group[n] != '\0' && group[n] != '/') || !stands(l))
			continue;
		best = l;
		longest = n;
	}
	return best;
}

uint64_t limit_used(const struct sim_snap *s, const struct sim_limit *limit)
{
	uint64_t used = 0;

	for (uint32_t i = 0; i < s->procs; i++)
		if (nearest(s, limit->gpu, s->proc[i].pid) == limit)
			snap_on_gpu(s, &s->proc[i], limit->gpu, &used);
	return used;
}

const struct sim_limit *limit_of(const struct sim_snap *s, uint32_t gpu, int pid, uint64_t *used)
{
	bool any = false;

	for (uint32_t i = 0; i < SIM_MAX_LIMITS; i++)
		any = any || s->limit[i].dir[0] != '\0';
	const struct sim_limit *l = any ? nearest(s, gpu, pid) : NULL;

	if (l != NULL)
		*used = limit_used(s, l);
	return l;
}
