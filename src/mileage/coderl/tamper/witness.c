/* Says when a program begins, when its main function returns and when it has ended as programs do.
 *
 * Preloaded into everything that a test command starts. A program that leaves in the middle of its tests (exit, _exit, a
 * system call of its own, another program in its place) with code 0 looks like one whose tests passed; what it cannot
 * do is return from a main function that it was called by. Messages are datagrams to the launcher: who sent them is said by
 * the kernel, and nobody else can receive them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define NAME "MILEAGE_WITNESS="
#define LONGEST 3000

typedef int (*main_function)(int, char **, char **);
typedef int (*start_function)(main_function, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

static struct sockaddr_un place;
static socklen_t place_size;
static pid_t owner;
static uint64_t token;
static main_function program;

static void tell(char kind, const char *text, size_t size) {
    char message[LONGEST + 32];
    size_t used = 0;
    int saved = errno;
    message[used++] = kind;
    for (int digit = 60; digit >= 0; digit -= 4)
        message[used++] = "0123456789abcdef"[(token >> digit) & 15];
    if (size > LONGEST)
        size = LONGEST;
    memcpy(message + used, text, size);
    used += size;
    int channel = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (channel >= 0) {
        while (sendto(channel, message, used, MSG_NOSIGNAL, (struct sockaddr *)&place, place_size) < 0 && errno == EINTR)
            continue;
        close(channel);
    }
    errno = saved;
}

/* Linked to be the first of all constructors, so nothing that a candidate wrote has run yet. */
__attribute__((constructor)) static void begin(int count, char **arguments, char **environment) {
    char text[LONGEST];
    const char *name = NULL;
    for (char **each = environment; each && *each; each++)
        if (strncmp(*each, NAME, sizeof NAME - 1) == 0)
            name = *each + sizeof NAME - 1;
    if (!name || strlen(name) + 2 > sizeof place.sun_path)
        return;
    place.sun_family = AF_UNIX;
    strcpy(place.sun_path + 1, name);
    place_size = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name);
    if (syscall(SYS_getrandom, &token, sizeof token, 0) != sizeof token)
        token = (uintptr_t)&token;
    owner = getpid();
    ssize_t used = readlink("/proc/self/exe", text, sizeof text / 2);
    if (used < 0)
        used = 0;
    for (int index = 1; index < count; index++) {
        size_t size = strlen(arguments[index]);
        if (used + size + 1 > sizeof text)
            break;
        text[used++] = '\0';
        memcpy(text + used, arguments[index], size);
        used += size;
    }
    tell('B', text, used);
}

static int watched(int count, char **arguments, char **environment) {
    int code = program(count, arguments, environment);
    if (owner && getpid() == owner)
        tell('R', "", 0);
    return code;
}

__attribute__((visibility("default"))) int __libc_start_main(main_function body, int count, char **arguments,
                                                             void (*init)(void), void (*fini)(void),
                                                             void (*loader_fini)(void), void *stack) {
    start_function start = (start_function)dlsym(RTLD_NEXT, "__libc_start_main");
    program = body;
    return start(watched, count, arguments, init, fini, loader_fini, stack);
}

/* The last of all destructors. */
__attribute__((destructor)) static void end(void) {
    if (owner && getpid() == owner)
        tell('E', "", 0);
}
