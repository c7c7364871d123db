/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "nap.h"

int nap_open(const int *signals)
{
	sigset_t set;

	sigemptyset(&set);
	for (; *signals != 0; signals++)
		sigaddset(&set, *signals);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int nap(int signals, double seconds, int fd)
{
	struct pollfd p[2] = { { .fd = signals, .events = POLLIN }, { .fd = fd, .events = POLLIN } };
	struct signalfd_siginfo info;
	struct timespec ts;

	if (seconds < 0.0)
		seconds = 0.0;
	ts.tv_sec = (time_t)seconds;
	ts.tv_nsec = (long)((seconds - (double)ts.tv_sec) * 1e9);
	ppoll(p, 2, &ts, NULL);
	return read(signals, &info, sizeof(info)) == sizeof(info) ? (int)info.ssi_signo : 0;
}
