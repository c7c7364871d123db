/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connects to a UNIX socket, asks for a place as an MPS client does, and goes away,
 * for ever.
 *
 * usage: connect PATH
 */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };

	if (argc != 2 || strlen(argv[1]) >= sizeof(to.sun_path)) {
		fprintf(stderr, "usage: connect PATH\n");
		return 2;
	}
	strcpy(to.sun_path, argv[1]);
	for (;;) {
		int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		char answer;

		if (!connect(fd, (struct sockaddr *)&to, sizeof(to)) && send(fd, "attach", 6, MSG_NOSIGNAL) == 6)
			recv(fd, &answer, 1, 0);
		close(fd);
	}
}
