/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A library with libcarma's face that answers as the script asks, rightly and
 * wrongly, for the host program.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../libcarma/carma.h"

int carma_abi(void)
{
	return CARMA_ABI;
}

char *carma_version(void)
{
	return strdup("of the test");
}

static const char *prefix = "";

char *carma_configure(const char *path, const char *gres_prefix)
{
	(void)path;
	prefix = gres_prefix;
	return strcmp(gres_prefix, "gres:") && strcmp(gres_prefix, "gres/") ? strdup("wrong prefix") : NULL;
}

char *carma_managed(void)
{
	return strdup("gpu,gpu-recovery,other");
}

char *carma_recovery(void)
{
	return strdup("other,gpu-recovery");
}

/* For jobs in partition late, and those that name none. */
char *carma_whole(void)
{
	static char text[1 << 14];
	size_t n = 0;

	for (int i = 0; i < 16; i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "whole %d %s %d %s\nbook %scarma:%d\n%stime_limit 240\nenv V=1\n"
				      "env LIST=%s\ntime SUBMIT\ncomment carma={\"late\":1}\n", 1 + i / 8, i & 1 ? "job" : "node",
				      i >> 1 & 1, i & 4 ? "late" : "", prefix, 100 * (1 + i / 8),
				      i & 2 ? "constrain carma1>=100|carma1u4294967294>=100\n" : "", i & 1 ? "job" : "node");
	return strdup(text);
}

/* Of the host program. */
extern atomic_int hold, held;

static int ticks, long_ticks;

char *carma_tick(void)
{
	ticks++;
	usleep(300000);
	if (long_ticks) {
		long_ticks--;
		sleep(4);
	}
	return NULL;
}

/* What stands behind so many NULs. */
static const char *behind(const char *ask, size_t len, int nuls)
{
	const char *end = ask + len;

	for (int i = 0; i < nuls; i++) {
		ask = memchr(ask, 0, (size_t)(end - ask));
		if (!ask)
			return "";
		ask++;
	}
	return ask;
}

char *carma_annotate(const char *ask, size_t len)
{
	const char *script = behind(ask, len, 19);
	char *text;

	if (!strncmp(script, "sleep", 5)) {
		usleep(300000);
		return strdup("tres_per_node late\n");
	}
	if (!strncmp(script, "hold", 4)) {
		for (held = 1; hold;)
			usleep(1000);
		held = 0;
		return strdup("tres_per_node late\n");
	}
	if (!strncmp(script, "refuse", 6))
		return strdup("refuse carma: line 1: no\n");
	if (!strncmp(script, "leave", 5))
		return strdup("leave because of the test\n");
	if (!strncmp(script, "slot", 4))
		return strdup("time_limit 240\nsignal 10 300 batch\nrequeue 1\ntell carma: cut\n");
	if (!strncmp(script, "keys", 4))
		return asprintf(&text, "tell %s;%s\n", behind(ask, len, 15), behind(ask, len, 16)) < 0 ? NULL : text;
	if (!strncmp(script, "vars ", 5)) {
		if (!*behind(ask, len, 17))
			return strdup(script);
		return asprintf(&text, "tell %s\n", behind(ask, len, 17)) < 0 ? NULL : text;
	}
	if (!strncmp(script, "again", 5))
		return strdup("vars A\n");
	if (!strncmp(script, "long tick", 9))
		long_ticks = 1;
	if (!strncmp(script, "ticks", 5))
		return asprintf(&text, "tell %d\n", ticks) < 0 ? NULL : text;
	if (!strncmp(script, "none", 4))
		return NULL;
	if (!strncmp(script, "garbage", 7))
		return strdup("\n\n \nword\nenv\nenv \ntres_per_node\nunknown thing\ncomment \nsignal 99\ntime_limit x\nrequeue\ntell \nno newline at the end");
	if (!strncmp(script, "huge", 4)) {
		text = malloc(1 << 20);
		memset(text, 'x', (1 << 20) - 1);
		memcpy(text, "env ", 4);
		text[(1 << 20) - 2] = '\n';
		text[(1 << 20) - 1] = '\0';
		return text;
	}
	if (asprintf(&text, "tres_per_node %sgpu:1,%scarma:%zu\nenv V=1\nenv MODE=shared\ntime SUBMIT\ncomment carma={}\n", prefix, prefix, len) < 0)
		return NULL;
	return text;
}
