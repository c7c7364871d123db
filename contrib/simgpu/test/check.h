/* SPDX-License-Identifier: Apache-2.0 */
/* Checks for the C tests: all run, each failure is printed, the exit status counts. */
#ifndef SIMGPU_CHECK_H
#define SIMGPU_CHECK_H

#include <math.h>
#include <stdio.h>
#include <string.h>

static int checks, failures;

#define CHECK(condition)                                                               \
	do {                                                                           \
		checks++;                                                              \
		if (!(condition)) {                                                    \
			failures++;                                                    \
			printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
		}                                                                      \
	} while (0)

#define CHECK_NEAR(got, want, tolerance)                                                                  \
	do {                                                                                              \
		double got_ = (got), want_ = (want);                                                      \
		checks++;                                                                                 \
		if (!(fabs(got_ - want_) <= (tolerance))) {                                               \
			failures++;                                                                       \
			printf("%s:%d: %s is %.9g, want %.9g\n", __FILE__, __LINE__, #got, got_, want_); \
		}                                                                                         \
	} while (0)

static int report(const char *name)
{
	printf("%-14s %d checks, %d failed\n", name, checks, failures);
	return failures != 0;
}

#endif
