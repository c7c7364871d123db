/* SPDX-License-Identifier: Apache-2.0 */
/* Quantities as people write them: 12G, 40s. */
#ifndef SIMGPU_UNITS_H
#define SIMGPU_UNITS_H

#include <stdbool.h>
#include <stdint.h>

/* "12G", "8192M", "512K", "1.5GiB", plain bytes: to bytes. Powers of 1024, as CUDA and MPS count. */
bool parse_bytes(const char *text, uint64_t *bytes);

/* "30", "30s", "500ms", "5m", "2h": to seconds. */
bool parse_seconds(const char *text, double *seconds);

/* A whole number within bounds. */
bool parse_long(const char *text, long min, long max, long *value);

/* A number within bounds. */
bool parse_double(const char *text, double min, double max, double *value);

#endif
