/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "mps.h"

int mps_connect(const char *pipe_dir)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	if ((size_t)snprintf(a.sun_path, sizeof(a.sun_path), "%s/control", pipe_dir) >= sizeof(a.sun_path))
		return -1;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); /* as 535 and 550 do */

	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

void mps_format_grant(const struct mps_grant *g, char line[MPS_LINE])
{
	int n = snprintf(line, MPS_LINE, "grant %d %u %u", g->server, g->percent, g->gpus);

	for (uint32_t i = 0; i < g->gpus; i++)
		n += snprintf(line + n, (size_t)(MPS_LINE - n), " %d=%llu", g->gpu[i].unit,
			      (unsigned long long)g->gpu[i].limit);
	snprintf(line + n, (size_t)(MPS_LINE - n), "\n");
}

bool mps_parse_grant(const char *line, struct mps_grant *g)
{
	int n;

	memset(g, 0, sizeof(*g));
	if (sscanf(line, "grant %d %u %u%n", &g->server, &g->percent, &g->gpus, &n) != 3 || g->gpus > SIM_MAX_GPUS)
		return false;
	line += n;
	for (uint32_t i = 0; i < g->gpus; i++, line += n) {
		unsigned long long limit;

		if (sscanf(line, " %d=%llu%n", &g->gpu[i].unit, &limit, &n) != 2)
			return false;
		g->gpu[i].limit = limit;
	}
	return true;
}
