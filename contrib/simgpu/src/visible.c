/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "units.h"
#include "visible.h"

int visible_all(const struct sim_snap *s, int *out)
{
	for (uint32_t g = 0; g < s->gpus; g++)
		out[g] = (int)s->gpu[g].first_unit;
	return (int)s->gpus;
}

/* Does the text name that unit, by a prefix of its own UUID or of its GPU's? */
static bool names(const struct sim_snap *s, int unit, const char *text)
{
	size_t len = strlen(text);
	const struct sim_unit *u = &s->unit[unit];

	return strncmp(u->uuid, text, len) == 0 || (u->mig <= 1 && strncmp(s->gpu[u->gpu].uuid, text, len) == 0);
}

/* One entry: the unit that it names, or -1. A prefix that fits two devices is no name. */
static int resolve(const struct sim_snap *s, const int *base, int n, const char *text)
{
	int found = -1;
	long index;

	if (isdigit((unsigned char)*text))
		return parse_long(text, 0, n - 1, &index) ? base[index] : -1;
	if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
		return -1;
	for (int i = 0; i < n; i++) {
		const struct sim_gpu *g = &s->gpu[s->unit[base[i]].gpu];

		for (uint32_t u = g->first_unit; u < g->first_unit + g->units; u++) {
			if (!names(s, (int)u, text))
				continue;
			if (found >= 0 && found != (int)u)
				return -1;
			found = (int)u;
		}
	}
	return found;
}

static bool listed(const int *out, int n, int unit)
{
	for (int i = 0; i < n; i++)
		if (out[i] == unit)
			return true;
	return false;
}

int visible_units(const struct sim_snap *s, const int *base, int n, const char *value, int *out)
{
	int count = 0;

	if (value == NULL) {
		memcpy(out, base, (size_t)n * sizeof(*out));
		return n;
	}
	while (count < SIM_MAX_GPUS) {
		char entry[64];
		size_t len = strcspn(value, ",");

		while (len > 0 && isspace((unsigned char)*value))
			value++, len--;
		snprintf(entry, sizeof(entry), "%.*s", (int)len, value);
		for (size_t end = strlen(entry); end > 0 && isspace((unsigned char)entry[end - 1]); end--)
			entry[end - 1] = '\0';

		int unit = resolve(s, base, n, entry);

		if (unit < 0 || listed(out, count, unit))
			break;
		out[count++] = unit;
		if (value[len] == '\0')
			break;
		value += len + 1;
	}
	return count;
}

uint64_t visible_mem_limit(const char *value, int ordinal, const char *uuid)
{
	char *copy = value == NULL ? NULL : strdup(value), *save = NULL;
	uint64_t limit = 0;

	for (char *item = copy == NULL ? NULL : strtok_r(copy, ",", &save); item != NULL;
	     item = strtok_r(NULL, ",", &save)) {
		char *eq = strchr(item, '=');
		uint64_t bytes;
		long index;

		if (eq == NULL || !parse_bytes(eq + 1, &bytes))
			continue;
		*eq = '\0';
		if ((parse_long(item, 0, SIM_MAX_GPUS, &index) && index == ordinal) || strcmp(item, uuid) == 0)
			limit = bytes;
	}
	free(copy);
	return limit;
}
