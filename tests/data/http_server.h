/* Runs tests/system/bad_server.py, which serves a directory of the test. */
#ifndef LKSI_HTTP_SERVER_H
#define LKSI_HTTP_SERVER_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct http_server {
    pid_t pid;
    int input; /* the server ends when this is closed, even if the test is killed */
    int port;  /* 0: python3 is missing */
} http_server;

static inline void http_server_start(http_server *server, const char *root, const char *log) {
    int input[2], output[2];
    server->port = 0;
    if (pipe(input) != 0 || pipe(output) != 0) abort();
    server->pid = fork();
    if (server->pid == 0) {
        dup2(input[0], 0);
        dup2(output[1], 1);
        close(input[1]);
        close(output[0]);
        execlp("python3", "python3", LKSI_SOURCE_DIR "/tests/system/bad_server.py", root, log, (char *)NULL);
        _exit(127);
    }
    close(input[0]);
    close(output[1]);
    server->input = input[1];
    FILE *stream = fdopen(output[0], "r");
    if (fscanf(stream, "%d", &server->port) != 1) server->port = 0;
    fclose(stream);
}

static inline void http_server_stop(http_server *server) {
    close(server->input);
    waitpid(server->pid, NULL, 0);
}

#endif
