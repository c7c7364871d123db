/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "units.h"

struct suffix {
	const char *text;
	double factor;
};

/* A number with one of the suffixes; the table ends with a NULL text. */
static bool parse_scaled(const char *text, const struct suffix *table, double *value)
{
	char *end;

	/* strtod() also takes white space, signs, hex, inf and nan: none of them is a quantity here. */
	if (*text < '0' || *text > '9' || text[1] == 'x' || text[1] == 'X')
		return false;
	errno = 0;
	double v = strtod(text, &end);

	if (errno != 0 || !isfinite(v))
		return false;
	for (; table->text != NULL; table++) {
		if (strcasecmp(end, table->text) == 0) {
			*value = v * table->factor;
			return true;
		}
	}
	return false;
}

bool parse_bytes(const char *text, uint64_t *bytes)
{
	static const struct suffix table[] = {
		{ "", 1.0 },	    { "b", 1.0 },	   { "k", 0x1p10 },   { "kb", 0x1p10 }, { "kib", 0x1p10 },
		{ "m", 0x1p20 },    { "mb", 0x1p20 },	   { "mib", 0x1p20 }, { "g", 0x1p30 },	{ "gb", 0x1p30 },
		{ "gib", 0x1p30 },  { "t", 0x1p40 },	   { NULL, 0.0 },
	};
	double v;

	if (!parse_scaled(text, table, &v) || v > 0x1p50)
		return false;
	*bytes = (uint64_t)v;
	return true;
}

bool parse_seconds(const char *text, double *seconds)
{
	static const struct suffix table[] = {
		{ "", 1.0 }, { "s", 1.0 }, { "ms", 1e-3 }, { "m", 60.0 }, { "h", 3600.0 }, { NULL, 0.0 },
	};

	return parse_scaled(text, table, seconds) && *seconds <= 1e9;
}

bool parse_long(const char *text, long min, long max, long *value)
{
	char *end;

	errno = 0;
	*value = strtol(text, &end, 10);
	return errno == 0 && end != text && *end == '\0' && *value >= min && *value <= max;
}

bool parse_double(const char *text, double min, double max, double *value)
{
	char *end;

	*value = strtod(text, &end);
	return end != text && *end == '\0' && *value >= min && *value <= max;
}
