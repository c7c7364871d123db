/* SPDX-License-Identifier: Apache-2.0 */
/* The MPS control daemon: its data, shared by the event loop and the commands. */
#ifndef SIMGPU_MPS_DAEMON_H
#define SIMGPU_MPS_DAEMON_H

#include <limits.h>
#include <stdio.h>
#include <sys/types.h>

#include "mps.h"
#include "state.h"

#define MPS_MAX_CONNS 256

/* A connection: a command, a client that waits for a server, or a client of the server. */
struct conn {
	int fd; /* -1: free */
	pid_t pid;
	uid_t uid;
	bool pending; /* has asked for a server and waits */
	int server;   /* pid of the server that it was granted */
	int awaits;   /* terminate_client: pid of the client whose end it waits for */
	unsigned long order;
};

/* The one server that can exist at a time. pid 0: none. */
struct server {
	pid_t pid;
	uid_t uid;
	int pipe; /* closing it ends the server */
	bool ready, stopping;
	struct mps_grant grant;
};

struct daemon {
	struct sim *sim;
	char dir[PATH_MAX];
	int listener, privileged, signals;
	int fifo, server_log; /* servers write into the one, the daemon takes it to the other */
	int version;	      /* 535 or 550 */
	FILE *log;
	struct mps_grant defaults; /* for the next server */
	char limit_text[SIM_MAX_GPUS][32]; /* the defaults' limits, as they were set; empty: none */
	struct server server;
	struct conn conn[MPS_MAX_CONNS];
	unsigned long order;
	int quit_fd;	 /* the connection that asked to quit, -1 for none */
	double quit_at;	 /* real monotonic seconds when the server is killed */
	bool quitting;
};

/* Runs the daemon in this process until it is told to quit. Returns the exit status. report: tells the start's outcome. */
int daemon_run(int report_fd);

/* Writes a line to control.log, in the real daemon's form. */
void daemon_log(struct daemon *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Starts a server for a user, if there is none. */
void daemon_start_server(struct daemon *d, uid_t uid);

/* Tells the server to end when its clients have. */
void daemon_stop_server(struct daemon *d);

/* The snapshot for the commands: fresh, valid until the next call. */
const struct sim_snap *daemon_look(struct daemon *d);

/*
 * Runs one command and answers on the connection: "STATUS\n", then the output.
 * Returns false when the answer comes later (quit, terminate_client).
 */
bool command_run(struct daemon *d, struct conn *c, char *line);
void command_answer(int fd, int status, const char *text);

/*
 * The server process: registers on the GPUs of the grant in its environment, says so on MPS_SERVER_FD, and lives
 * until that closes.
 */
#define MPS_GRANT_ENV "SIMGPU_MPS_GRANT"
#define MPS_SERVER_FD 3
int server_main(void);

#endif
