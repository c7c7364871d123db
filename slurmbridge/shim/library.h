/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CARMA_LIBRARY_H
#define CARMA_LIBRARY_H

#include "shim.h"

/* What libcarma.so exports (carma.h). One thread alone may call it. */
struct library {
	char *(*annotate)(const char *ask, size_t len);
	char *(*tick)(void);
	char *(*recovery)(void);
	char *(*managed)(void);
	char *(*whole)(void);
	char *(*version)(void);
};

/* Opens libcarma and configures it. Returns NULL, or why it cannot be used;
 * message is NULL or what configuring has to say, which the caller frees. */
const char *library_load(struct library *lib, const char *config, const char *gres_prefix, char **message);

#endif
