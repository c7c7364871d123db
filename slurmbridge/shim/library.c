/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Finds libcarma.so and opens it. */
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "library.h"

/* dlopen() of a file that ends before its segments do maps it all the same, and
 * the first touch of what is missing kills the process with SIGBUS. */
static bool whole(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	Elf64_Ehdr head;
	Elf64_Phdr part;
	bool ok = fd >= 0 && !fstat(fd, &st) && pread(fd, &head, sizeof(head), 0) == sizeof(head) &&
		  !memcmp(head.e_ident, ELFMAG, SELFMAG) && head.e_phentsize == sizeof(part);

	for (int i = 0; ok && i < head.e_phnum; i++)
		ok = pread(fd, &part, sizeof(part), (off_t)(head.e_phoff + i * sizeof(part))) == sizeof(part) &&
		     part.p_offset + part.p_filesz <= (Elf64_Off)st.st_size;
	if (fd >= 0)
		close(fd);
	return ok;
}

/* libcarma.so stands one directory above the plugin, or what the plugin's name
 * in PluginDir is a link to: no search path and no environment decides what
 * slurmctld loads. */
const char *library_load(struct library *lib, const char *config, const char *gres_prefix, char **message)
{
	char plugin[PATH_MAX], path[PATH_MAX];
	Dl_info self;
	void *so;
	int (*abi)(void);
	char *(*configure)(const char *, const char *);
	char *slash;

	if (!dladdr((void *)library_load, &self) || !self.dli_fname || self.dli_fname[0] != '/' ||
	    !realpath(self.dli_fname, plugin) || !(slash = strrchr(plugin, '/')) ||
	    snprintf(path, sizeof(path), "%.*s/../libcarma.so", (int)(slash - plugin), plugin) >= (int)sizeof(path))
		return "cannot locate libcarma.so: PluginDir must be an absolute path";
	if (access(path, R_OK) == 0 && !whole(path))
		return "libcarma.so is not a library, or is truncated";
	if (!(so = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)))
		return dlerror();
	*(void **)&abi = dlsym(so, "carma_abi");
	*(void **)&configure = dlsym(so, "carma_configure");
	*(void **)&lib->annotate = dlsym(so, "carma_annotate");
	*(void **)&lib->tick = dlsym(so, "carma_tick");
	*(void **)&lib->recovery = dlsym(so, "carma_recovery");
	*(void **)&lib->managed = dlsym(so, "carma_managed");
	*(void **)&lib->whole = dlsym(so, "carma_whole");
	*(void **)&lib->version = dlsym(so, "carma_version");
	if (!abi || !configure || !lib->annotate || !lib->tick || !lib->recovery || !lib->managed || !lib->whole ||
	    !lib->version || abi() != CARMA_ABI)
		return "libcarma.so and the plugin are of different versions";
	*message = configure(config, gres_prefix);
	return NULL;
}
