/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libcarma.so exports and the job_submit shim calls. Only text crosses:
 * no Slurm type, no pointer that outlives a call. What the library returns is
 * NULL or comes from malloc(); the caller frees it.
 *
 *   int   carma_abi(void);
 *   char *carma_version(void);
 *   char *carma_configure(const char *path, const char *gres_prefix);
 *   char *carma_tick(void);
 *   char *carma_recovery(void);
 *   char *carma_managed(void);
 *   char *carma_whole(void);
 *   char *carma_annotate(const char *ask, size_t len);
 *
 * carma_recovery returns the partitions that take jobs from CARMA alone, with
 * commas between, as of the last carma_configure or carma_tick; NULL: none. carma_managed
 * returns all partitions of carma.toml so; an empty text: by its mode no job is to be changed or
 * refused, and an answer has but tell and comment.
 *
 * carma_whole returns, of the same time, what is booked for jobs that carma_annotate does not
 * answer for: whole GPUs. Blocks of lines, each begun by
 *
 *   whole K LIST CONSTRAINS PARTITION
 *
 * for jobs that ask for K GPUs of a node in tres_per_node (LIST is "node"), or for K GPUs in
 * tres_per_job and one node ("job"); CONSTRAINS as below; PARTITION is empty for jobs that name
 * none. The lines of a block are as those of an answer, but for
 *
 *   book ENTRY             stands behind the job's own GPUs in tres_per_node
 *   constrain TEXT         is the job's extra; CARMA_NO_VAL there stands for its user_id
 *   time_limit MINUTES     for jobs without a limit, or with a longer one
 *
 * ask holds the fields below, each ended by a NUL, and then the script:
 *
 *   partition tres_per_node tres_per_job tres_per_socket tres_per_task
 *   min_nodes num_tasks ntasks_per_node sockets_per_node user_id time_limit
 *   max_nodes
 *   task_gpus (made of tasks and ntasks_per_tres by slurmctld, where the lists name no GPUs; 0: none)
 *   constrains (1: slurmctld compares jobs' extra with what nodes have there; else 0)
 *   extra
 *   the keys of --carma, and those of CARMA in the environment, each cut at CARMA_KEYS_MAX bytes
 *   NAME=VALUE of the variables that an answer has named, each ended by CARMA_ARG_END, cut at
 *   CARMA_ARGS_MAX bytes; empty where none are named yet; CARMA_NO_VALUES: no environment came with the job
 *   the script's arguments, each ended by CARMA_ARG_END, cut at CARMA_ARGS_MAX bytes
 *
 * (numbers in decimal, CARMA_NO_VAL where the user did not say). The answer is
 * NULL to leave the job alone, or lines "word text\n":
 *
 *   vars NAME,NAME         the only line: ask again, with the values of these variables
 *   leave TEXT             there is no answer, because of TEXT, which is for the log
 *   refuse TEXT            refuse the job; TEXT is for the user
 *   tres_per_node LIST     set the list (empty: clear it); also
 *                          tres_per_job, tres_per_socket, tres_per_task, extra
 *   time_limit MINUTES     set the time limit
 *   signal NUMBER SECONDS TO
 *                          as sbatch --signal, unless the job has one; TO is
 *                          "batch" (the batch shell alone) or "steps"
 *   requeue 1              as sbatch --requeue, unless the job says something
 *   tell TEXT              TEXT is for the user, whose job is accepted
 *   env NAME=VALUE         add CARMA_NAME=VALUE to spank_job_env
 *   time NAME              add CARMA_NAME=<seconds since 1970>
 *   comment TOKEN          add TOKEN to AdminComment
 */
#ifndef CARMA_H
#define CARMA_H

#define CARMA_ABI 12
#define CARMA_NO_VAL 0xfffffffeu /* Slurm's NO_VAL */

#define CARMA_ARG_END '\x1f'
#define CARMA_ARGS_MAX 4096
#define CARMA_NO_VALUES "-"
#define CARMA_VARS_MAX 8 /* as directive.maxVars */

/* More than directive.MaxOption, so that longer ones are refused. */
#define CARMA_KEYS_MAX 1025

/* Bytes of a script that are handed over: directive.maxHeader and a line. */
#define CARMA_SCRIPT_MAX ((2 << 20) + 4096)

#endif
