/* SPDX-License-Identifier: Apache-2.0 */
/*
 * user-mode-linux before 6.13 keeps 832 bytes of a process's floating-point state (x87, SSE, AVX), and a host whose
 * processor has more (AVX-512, AMX) takes the whole or nothing: "ptrace set fp regs failed, errno = 14", and no boot.
 * Preloaded into linux.uml, this keeps the rest for it, by the address of the state that it belongs to.
 */
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define STATE_MAX 12288 /* of AMX's processors: 11008 */
#define STATES 4096
#define PROBES 64
#define HEADER 512 /* xstate_bv, after the legacy area; then 56 bytes */

static uintptr_t owners[STATES];
static char states[STATES][STATE_MAX]; /* pages that nothing is put into cost nothing */

/*
 * Where the rest of the state at an address is, or where it can be put: places stay their owners', which linux.uml
 * uses again for the next process. One whose place is taken has only what linux.uml knows, and programs that use
 * AVX-512, as the C library does, end without a word.
 */
static size_t place(uintptr_t of)
{
	size_t first = (of >> 6) % STATES, free = STATES;

	for (size_t i = 0; i < PROBES; i++) {
		size_t at = (first + i) % STATES;

		if (owners[at] == of)
			return at;
		if (owners[at] == 0 && free == STATES)
			free = at;
	}
	return free < STATES ? free : first;
}

static long get(long pid, struct iovec *part)
{
	size_t at = place((uintptr_t)part->iov_base);
	struct iovec whole = { states[at], STATE_MAX };
	long rc = syscall(SYS_ptrace, PTRACE_GETREGSET, pid, NT_X86_XSTATE, &whole);

	owners[at] = 0;
	if (rc != 0)
		return rc;
	owners[at] = (uintptr_t)part->iov_base;
	if (part->iov_len > whole.iov_len)
		part->iov_len = whole.iov_len;
	memcpy(part->iov_base, states[at], part->iov_len);
	return 0;
}

static long set(long pid, const struct iovec *part)
{
	static char bytes[STATE_MAX]; /* linux.uml's stacks are small */
	struct iovec whole = { bytes, sizeof(bytes) };
	size_t at = place((uintptr_t)part->iov_base);
	int known = owners[at] == (uintptr_t)part->iov_base;
	uint64_t features;

	/* How long it is to be, and which features there are. */
	if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, NT_X86_XSTATE, &whole) != 0)
		return -1;
	if (known)
		memcpy(bytes, states[at], whole.iov_len);
	memcpy(bytes, part->iov_base, part->iov_len < whole.iov_len ? part->iov_len : whole.iov_len);
	if (!known) { /* a new process: no more than what linux.uml knows */
		memcpy(&features, bytes + HEADER, sizeof(features));
		features &= 7;
		memcpy(bytes + HEADER, &features, sizeof(features));
	}
	return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, NT_X86_XSTATE, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list list;

	va_start(list, request);
	long pid = va_arg(list, long);
	void *address = va_arg(list, void *), *data = va_arg(list, void *);
	va_end(list);
	if (request == PTRACE_GETREGSET && (uintptr_t)address == NT_X86_XSTATE)
		return get(pid, data);
	if (request == PTRACE_SETREGSET && (uintptr_t)address == NT_X86_XSTATE)
		return set(pid, data);

	/* As in the C library: what is read is the result. */
	long word = 0;
	int peek = request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER;
	long rc = syscall(SYS_ptrace, request, pid, address, peek ? &word : data);

	if (peek && rc == 0) {
		errno = 0;
		return word;
	}
	return rc;
}
