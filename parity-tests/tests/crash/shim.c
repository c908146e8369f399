/* A library that is loaded before libc and stands between a process and one folder of its disk.
 *
 * It counts what changes that folder: writes, syncs and changes of names. At the operation that the control file
 * names it kills the process or answers an error, and it can play a small file system. The control file is shared
 * memory, so the test may look and change its mind while the process runs; shim.rs holds the same layout. The process
 * is killed, not the machine, so nothing that was written is lost, and real syncs would only take time: they are
 * counted and not made. It can also lie: what it swallows is answered as done, is not done, and does not count. It can
 * do less than it was asked for, as the calls of a system may: half of a write, or nothing, because a signal came. And it
 * can hold an operation until the control file says otherwise, as a disk that hangs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* What makes a name is a change of names, too. */
enum { WRITE = 1, SYNC = 2, NAME = 4, MAKE = NAME | 8 };
enum { PASS = 0, KILL_BEFORE = 1, KILL_AFTER = 2, KILL_TORN = 3, FAIL_EIO = 4, FAIL_ENOSPC = 5, SWALLOW = 6, SHORT = 7, FAIL_EINTR = 8,
       HOLD = 9, FAIL_EROFS = 10 };

struct control {
    _Atomic uint64_t count;  /* operations of the kinds that were seen */
    _Atomic uint64_t at;     /* the one to act at, from 1; 0 is never */
    _Atomic uint64_t action; /* what to do there */
    _Atomic uint64_t times;  /* errors answered, or operations held, from there on */
    _Atomic uint64_t kinds;  /* which kinds count */
    _Atomic int64_t budget;  /* bytes that the folder may hold */
    _Atomic int64_t used;    /* bytes that it has grown by */
    _Atomic uint64_t fired;  /* how often it acted */
    char what[448];          /* the first operation that it acted at */
    char needle[448];        /* where not empty, only writes with these bytes count */
    char under[64];          /* where not empty, only paths that hold this count; behind a '!', only those that do not */
};

static struct control *control;
static char folder[PATH_MAX];
static size_t folder_len;

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("SHIM_CONTROL"), *under = getenv("SHIM_FOLDER");
    if (!file || !under) return;
    int fd = REAL(open)(file, O_RDWR | O_CLOEXEC);
    if (fd < 0) abort();
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) abort();
    snprintf(folder, sizeof folder, "%s", under);
    folder_len = strlen(folder);
    control = mapped;
}

static int is_inside(const char *path) {
    return strncmp(path, folder, folder_len) == 0 && (path[folder_len] == '/' || path[folder_len] == 0);
}

/* The path of an open file, or of a name beside an open folder; NULL where it is not in the folder. */
static const char *path_of(int fd, const char *name, char out[PATH_MAX]) {
    if (!control) return NULL;
    if (name && name[0] == '/') {
        snprintf(out, PATH_MAX, "%s", name);
    } else if (fd == AT_FDCWD) {
        return NULL;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t len = readlink(link, out, PATH_MAX - 1);
        if (len < 0) return NULL;
        out[len] = 0;
        if (name) snprintf(out + len, (size_t)(PATH_MAX - len), "/%s", name);
    }
    return is_inside(out) ? out : NULL;
}

/* Counts an operation and answers what is to be done at it. */
static uint64_t meet(uint64_t kind, const char *operation, const char *path, const void *bytes, size_t len) {
    if (!(atomic_load(&control->kinds) & kind)) return PASS;
    int is_not = control->under[0] == '!';
    int is_under = strstr(path + folder_len, control->under + is_not) != NULL;
    if (control->under[0] && is_under == is_not) return PASS;
    size_t needle = strnlen(control->needle, sizeof control->needle);
    if (needle && (!bytes || !memmem(bytes, len, control->needle, needle))) return PASS;
    uint64_t now = atomic_fetch_add(&control->count, 1) + 1;
    uint64_t at = atomic_load(&control->at), action = atomic_load(&control->action);
    int is_repeated = action == FAIL_EIO || action == FAIL_ENOSPC || action == FAIL_EROFS || action == HOLD;
    uint64_t times = is_repeated ? atomic_load(&control->times) : 1;
    if (!at || now < at || now - at >= times) return PASS;
    if (action == SWALLOW) {
        if (atomic_load(&control->fired)) return PASS;
        atomic_fetch_sub(&control->count, 1);
    }
    if (atomic_fetch_add(&control->fired, 1) == 0)
        snprintf(control->what, sizeof control->what, "%s %s (%zu bytes)", operation, path + folder_len, len);
    if (action == KILL_BEFORE) {
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
    while (action == HOLD && atomic_load(&control->action) == HOLD) usleep(1000);
    return action;
}

static void after(uint64_t action) {
    if (action == KILL_AFTER || action == KILL_TORN) {
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
}

static int is_failed(uint64_t action) {
    if (action != FAIL_EIO && action != FAIL_ENOSPC && action != FAIL_EINTR && action != FAIL_EROFS) return 0;
    errno = action == FAIL_EIO ? EIO : action == FAIL_EINTR ? EINTR : action == FAIL_EROFS ? EROFS : ENOSPC;
    return 1;
}

/* Takes as much of `bytes` as the budget has room for. */
static size_t take(int64_t bytes) {
    int64_t before = atomic_fetch_add(&control->used, bytes), budget = atomic_load(&control->budget);
    if (bytes <= 0 || before + bytes <= budget) return (size_t)(bytes > 0 ? bytes : 0);
    int64_t room = budget > before ? budget - before : 0;
    atomic_fetch_sub(&control->used, bytes - room);
    return (size_t)room;
}

static int64_t size_of(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 ? (int64_t)found.st_size : 0;
}

/* A write of `len` bytes at `offset`; a negative one is where the file stands. */
static ssize_t write_to(int fd, const void *bytes, size_t len, off64_t offset, const char *operation) {
    char path[PATH_MAX];
    uint64_t action = PASS;
    if (path_of(fd, NULL, path) && S_ISREG(({ struct stat s; fstat(fd, &s); s.st_mode; }))) {
        action = meet(WRITE, operation, path, bytes, len);
        if (is_failed(action)) return -1;
        if (action == SWALLOW) return (ssize_t)len;
        if (action == KILL_TORN) len /= 2;
        if (action == SHORT) len -= len / 2;
        int64_t from = offset >= 0 ? offset : lseek(fd, 0, SEEK_CUR);
        int64_t grown = from + (int64_t)len - size_of(fd);
        if (grown > 0) {
            size_t room = take(grown);
            if (room < (size_t)grown && (len -= (size_t)grown - room) == 0) {
                errno = ENOSPC;
                return -1;
            }
        }
    }
    ssize_t done = offset >= 0 ? REAL(pwrite64)(fd, bytes, len, offset) : REAL(write)(fd, bytes, len);
    after(action);
    return done;
}

ssize_t write(int fd, const void *bytes, size_t len) {
    return control ? write_to(fd, bytes, len, -1, "write") : REAL(write)(fd, bytes, len);
}
ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t offset) {
    return control ? write_to(fd, bytes, len, offset, "pwrite") : REAL(pwrite64)(fd, bytes, len, offset);
}
ssize_t pwrite(int fd, const void *bytes, size_t len, off_t offset) { return pwrite64(fd, bytes, len, offset); }

/* Several pieces: as a write may, it writes the first that is not empty, and answers how much that was. */
ssize_t writev(int fd, const struct iovec *pieces, int count) {
    char path[PATH_MAX];
    if (!path_of(fd, NULL, path)) return REAL(writev)(fd, pieces, count);
    for (int i = 0; i < count; i++)
        if (pieces[i].iov_len) return write_to(fd, pieces[i].iov_base, pieces[i].iov_len, -1, "writev");
    return 0;
}

static int sync_of(int fd, const char *operation) {
    char path[PATH_MAX];
    if (!path_of(fd, NULL, path)) return 0;
    uint64_t action = meet(SYNC, operation, path, NULL, 0);
    if (is_failed(action)) return -1;
    after(action);
    return 0;
}
int fsync(int fd) { return sync_of(fd, "fsync"); }
int fdatasync(int fd) { return sync_of(fd, "fdatasync"); }

/* A change of names, or of a length: `call` is what it does, `path` where. */
#define CHANGE(kind, operation, path, len, call)                              \
    do {                                                                      \
        uint64_t action = meet(kind, operation, path, NULL, len);             \
        if (is_failed(action)) return -1;                                     \
        int done = call;                                                      \
        after(action);                                                        \
        return done;                                                          \
    } while (0)

int ftruncate64(int fd, off64_t len) {
    char path[PATH_MAX];
    if (!path_of(fd, NULL, path)) return REAL(ftruncate64)(fd, len);
    int64_t grown = (int64_t)len - size_of(fd);
    if (take(grown) < (size_t)(grown > 0 ? grown : 0)) {
        errno = ENOSPC;
        return -1;
    }
    CHANGE(WRITE, "ftruncate", path, (size_t)len, REAL(ftruncate64)(fd, len));
}
int ftruncate(int fd, off_t len) { return ftruncate64(fd, len); }

static void freed(const char *path) {
    struct stat found;
    if (lstat(path, &found) == 0 && S_ISREG(found.st_mode) && found.st_nlink == 1) take(-(int64_t)found.st_size);
}

int rename(const char *from, const char *to) {
    char path[PATH_MAX];
    if (!path_of(AT_FDCWD, to, path)) return REAL(rename)(from, to);
    CHANGE(MAKE, "rename", path, 0, REAL(rename)(from, to));
}
int renameat(int from_fd, const char *from, int to_fd, const char *to) {
    char path[PATH_MAX];
    if (!path_of(to_fd, to, path)) return REAL(renameat)(from_fd, from, to_fd, to);
    CHANGE(MAKE, "renameat", path, 0, REAL(renameat)(from_fd, from, to_fd, to));
}
int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags) {
    char path[PATH_MAX];
    if (!path_of(to_fd, to, path)) return REAL(linkat)(from_fd, from, to_fd, to, flags);
    CHANGE(MAKE, "linkat", path, 0, REAL(linkat)(from_fd, from, to_fd, to, flags));
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
int mkdirat(int fd, const char *name, mode_t mode) {
    char path[PATH_MAX];
    if (!path_of(fd, name, path)) return REAL(mkdirat)(fd, name, mode);
    CHANGE(MAKE, "mkdir", path, 0, REAL(mkdirat)(fd, name, mode));
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
int unlinkat(int fd, const char *name, int flags) {
    char path[PATH_MAX];
    if (!path_of(fd, name, path)) return REAL(unlinkat)(fd, name, flags);
    uint64_t action = meet(NAME, "unlink", path, NULL, 0);
    if (is_failed(action)) return -1;
    freed(path);
    int done = REAL(unlinkat)(fd, name, flags);
    after(action);
    return done;
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

/* Opening a file changes names only where it makes one. */
static int open_at(int fd, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    if (!(flags & O_CREAT) || !path_of(fd, name, path) || access(path, F_OK) == 0)
        return REAL(openat64)(fd, name, flags, mode);
    CHANGE(MAKE, "create", path, 0, REAL(openat64)(fd, name, flags, mode));
}
#define MODE(flags)                                                           \
    mode_t mode = 0;                                                          \
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {                \
        va_list rest;                                                         \
        va_start(rest, flags);                                                \
        mode = va_arg(rest, mode_t);                                          \
        va_end(rest);                                                         \
    }
int open(const char *name, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, name, flags, mode); }
int openat(int fd, const char *name, int flags, ...) { MODE(flags) return open_at(fd, name, flags, mode); }
int openat64(int fd, const char *name, int flags, ...) { MODE(flags) return open_at(fd, name, flags, mode); }
