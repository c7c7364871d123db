/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The lines of a TaskProlog's output: export NAME=VALUE, unset NAME, print TEXT. */
#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "spank.h"

static bool is_name(const char *text)
{
	if (!isalpha((unsigned char)*text) && *text != '_')
		return false;
	while (isalnum((unsigned char)*text) || *text == '_')
		text++;
	return !*text;
}

static void apply_line(char *line, const struct line_actions *act, void *to)
{
	char *equals;

	if (!strncmp(line, "export ", 7)) {
		line += 7;
		equals = strchr(line, '=');
		if (!equals)
			return;
		*equals = '\0';
		if (is_name(line))
			act->export(to, line, equals + 1);
	} else if (!strncmp(line, "unset ", 6) && is_name(line + 6)) {
		act->unset(to, line + 6);
	}
}

void lines_apply(char *output, size_t len, const struct line_actions *act, void *to)
{
	char *line = output, *end;

	/* A line that does not end is a part of one. */
	for (; (end = memchr(line, '\n', len - (size_t)(line - output))); line = end + 1) {
		if (memchr(line, '\0', (size_t)(end - line)))
			continue;
		if (!strncmp(line, "print ", 6)) {
			act->print(to, line + 6, (size_t)(end + 1 - (line + 6)));
			continue;
		}
		*end = '\0';
		apply_line(line, act, to);
	}
}
