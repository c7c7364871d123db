/* SPDX-License-Identifier: Apache-2.0 */
/* nvidia-cuda-mps-control, the stand-in: starts the daemon, or sends it the commands on stdin. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mps_daemon.h"

/* -1: there is no daemon. Else the command's exit status. */
static int send_command(const char *line)
{
	const char *dir = getenv(MPS_PIPE_ENV);
	int fd = mps_connect(dir == NULL ? "/tmp/nvidia-mps" : dir);
	static char buf[1 << 16]; /* a message is one answer, which may be a long list */
	char *text = NULL, *newline;
	size_t size = 0;
	int status = -1;

	if (fd < 0)
		return -1;
	FILE *answer = open_memstream(&text, &size);

	dprintf(fd, "run %s\n", line);
	for (ssize_t n; answer != NULL && (n = recv(fd, buf, sizeof(buf), 0)) > 0;)
		fwrite(buf, 1, (size_t)n, answer);
	close(fd);
	if (answer == NULL)
		return 1;
	fclose(answer);
	newline = strchr(text, '\n');
	if (newline != NULL) {
		status = atoi(text);
		fputs(newline + 1, stdout);
	}
	free(text);
	return status;
}

static int interactive(void)
{
	char line[1024];
	int status = 0;

	while (fgets(line, sizeof(line), stdin) != NULL) {
		line[strcspn(line, "\r\n")] = '\0';
		status = send_command(line);
		if (status < 0) {
			/* The real tool's words, exit status and stream. */
			fprintf(stderr, "Cannot find MPS control daemon process\n");
			return 1;
		}
		fflush(stdout);
		if (strncmp(line, "quit", 4) == 0 && status == 0)
			break;
	}
	return status;
}

/* The child leaves everything behind that the caller may wait for: session, directory, descriptors. */
static int detach(void)
{
	char buf[512];
	int report[2];
	ssize_t n, total = 0;

	if (pipe(report) != 0)
		return 1;
	fflush(stdout);
	pid_t pid = fork();

	if (pid < 0) {
		close(report[0]);
		close(report[1]);
		return 1;
	}
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);

		setsid();
		for (int fd = 0; fd < 3; fd++)
			dup2(null, fd);
		dup2(report[1], 3);
		closefrom(4);
		fcntl(3, F_SETFD, FD_CLOEXEC);
		exit(daemon_run(3));
	}
	/* End of file means that it listens; a line says why it does not. */
	close(report[1]);
	while ((n = read(report[0], buf + total, sizeof(buf) - (size_t)total)) > 0)
		total += n;
	close(report[0]);
	fwrite(buf, 1, (size_t)total, stdout);
	return total == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
	if (strcmp(argv[0], "nvidia-cuda-mps-server") == 0)
		return server_main();
	if (argc == 1)
		return interactive();
	if (argc == 2 && strcmp(argv[1], "-d") == 0)
		return detach();
	if (argc == 2 && strcmp(argv[1], "-f") == 0)
		return daemon_run(STDOUT_FILENO);
	fprintf(argc == 2 && strcmp(argv[1], "-h") == 0 ? stdout : stderr,
		"Usage: nvidia-cuda-mps-control [-d | -f]\n"
		"  -d  start the control daemon in the background\n"
		"  -f  start it in the foreground\n"
		"  Without an option, commands are read from standard input and sent to the daemon.\n");
	return argc == 2 && strcmp(argv[1], "-h") == 0 ? 0 : 2;
}
