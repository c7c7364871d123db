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
#define STATES 2048
#define HEADER 512 /* xstate_bv, after the legacy area; then 56 bytes */

static struct state {
	uintptr_t of;
	char bytes[STATE_MAX];
} table[STATES]; /* pages that nothing is put into cost nothing */

/* A place that another state had is taken over: that one is then what linux.uml itself knows of it. */
static struct state *place(void *of)
{
	return &table[((uintptr_t)of >> 6) % STATES];
}

static long get(long pid, struct iovec *part)
{
	struct state *s = place(part->iov_base);
	struct iovec whole = { s->bytes, sizeof(s->bytes) };
	long rc = syscall(SYS_ptrace, PTRACE_GETREGSET, pid, NT_X86_XSTATE, &whole);

	s->of = 0;
	if (rc != 0)
		return rc;
	s->of = (uintptr_t)part->iov_base;
	if (part->iov_len > whole.iov_len)
		part->iov_len = whole.iov_len;
	memcpy(part->iov_base, s->bytes, part->iov_len);
	return 0;
}

static long set(long pid, const struct iovec *part)
{
	static char bytes[STATE_MAX]; /* linux.uml's stacks are small */
	struct iovec whole = { bytes, sizeof(bytes) };
	const struct state *s = place(part->iov_base);
	uint64_t features;

	/* How long it is to be, and which features there are. */
	if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, NT_X86_XSTATE, &whole) != 0)
		return -1;
	if (s->of == (uintptr_t)part->iov_base)
		memcpy(bytes, s->bytes, whole.iov_len);
	memcpy(bytes, part->iov_base, part->iov_len < whole.iov_len ? part->iov_len : whole.iov_len);
	if (s->of != (uintptr_t)part->iov_base) { /* a new process: no more than what linux.uml knows */
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
