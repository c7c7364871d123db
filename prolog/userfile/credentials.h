/* SPDX-License-Identifier: Apache-2.0 */

#ifndef USERFILE_CREDENTIALS_H
#define USERFILE_CREDENTIALS_H

/* The argument before the user's id with which a program becomes the child. */
#define USERFILE_COMMAND "as-user"

/* 1 once every thread of this process has the user's file system ids and no capability. */
extern int userfile_ready;

#endif
