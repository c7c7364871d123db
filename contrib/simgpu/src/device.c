/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "device.h"

enum device_result device_open(const char *dir, uint32_t gpu)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/nvidia%u", dir, gpu);
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd >= 0)
		close(fd);
	/* A node without a driver: nothing has forbidden it. */
	if (fd >= 0 || errno == ENXIO || errno == ENODEV)
		return DEVICE_OPENS;
	return errno == ENOENT ? DEVICE_MISSING : DEVICE_DENIED;
}
