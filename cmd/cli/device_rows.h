/* SPDX-License-Identifier: MIT */
/* device_rows: the options by which a program computes on a CPU or a GPU, and what this machine has. */
#ifndef NIBBLE_CMD_CLI_DEVICE_ROWS_H
#define NIBBLE_CMD_CLI_DEVICE_ROWS_H

#include "cmd/cli/cmd.h"
#include "lib/load/device.h"

/* Targets of the rows --device, --compute, --path and --fast: members of a struct device_options. */
#define DEVICE_NAME(o)           CMD_CALL(&(o), device_take_name)
#define DEVICE_COMPUTE(o, words) CMD_CHOICE(&(o).compute, words, COMPUTE_AUTO)
#define DEVICE_PATH(o)           CMD_CHOICE(&(o).path, device_paths, PATH_AUTO)
#define DEVICE_FAST(o)           CMD_FLAG(&(o).fast)
void device_take_name(const struct cmd_option *row, const char *arg);
/* Print what this machine and build can do, as TSV. */
void device_diagnose(const struct device_options *o);

#endif
