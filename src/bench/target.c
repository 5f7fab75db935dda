/* The measured server: see target.h. */
#include "bench/target.h"

#include "args/args.h"
#include "base/buf.h"
#include "base/log.h"
#include "bench/client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/http.h>
#include <fcntl.h>
#include <jansson.h>
#include <netdb.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static int connect_to(const char *host, int port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    char service[16];
    int fd = -1;
    snprintf(service, sizeof service, "%d", port);
    if (getaddrinfo(host, service, &hints, &list)) return -1;
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
        struct timeval tv = {5, 0};
        if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen)) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    return fd;
}

/* A short GET: the status, and the body in b; -1 when nobody answers. Our own bodies and those of the common servers come with a length or end with the
 * connection, since HTTP/1.0 is spoken. */
static int get(const char *url, const char *path, const char *key, struct lk_buf *b)
{
    struct evhttp_uri *u = evhttp_uri_parse(url);
    char head[700], auth[300] = "", part[4096];
    int status = -1;
    if (!u || !evhttp_uri_get_host(u)) return -1;
    int fd = connect_to(evhttp_uri_get_host(u), evhttp_uri_get_port(u) > 0 ? evhttp_uri_get_port(u) : 80);
    if (key) snprintf(auth, sizeof auth, "Authorization: Bearer %.200s\r\n", key);
    int n = snprintf(head, sizeof head, "GET %s HTTP/1.0\r\nHost: %.100s\r\n%s\r\n", path, evhttp_uri_get_host(u), auth);
    evhttp_uri_free(u);
    if (fd < 0) return -1;
    if (write(fd, head, (size_t)n) == n) {
        lk_buf_reset(b);
        ssize_t got;
        while (b->len < (1 << 20) && (got = read(fd, part, sizeof part)) > 0) lk_buf_add(b, part, (size_t)got);
        char *body = b->data ? strstr(b->data, "\r\n\r\n") : NULL;
        if (body && sscanf(b->data, "HTTP/%*s %d", &status) == 1) {
            size_t skip = (size_t)(body + 4 - b->data);
            memmove(b->data, b->data + skip, b->len - skip + 1);
            b->len -= skip;
        }
    }
    close(fd);
    return status;
}

static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = -1;
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a) && !getsockname(fd, (struct sockaddr *)&a, &len)) port = ntohs(a.sin_port);
    if (fd >= 0) close(fd);
    return port;
}

static int own_start(struct lk_target *t, const struct lk_opts *o, struct lk_err *e)
{
    struct lk_buf devices = {0};
    char port[16], threads[16], ctx[16], parallel[16], draft[16], kv[8];
    int p = free_port(), n = 0;
    const char *a[40];
    if (p < 0) return lk_fail(e, LK_ESYS, "no free port on this machine: %s", strerror(errno));
    snprintf(t->url, sizeof t->url, "http://127.0.0.1:%d", p);
    snprintf(port, sizeof port, "%d", p);
    lk_opts_devices_put(&o->engine.dev, &devices);
    snprintf(threads, sizeof threads, "%d", o->engine.dev.threads);
    snprintf(ctx, sizeof ctx, "%d", o->engine.ctx);
    snprintf(parallel, sizeof parallel, "%d", o->engine.parallel);
    snprintf(draft, sizeof draft, o->engine.draft < 0 ? "auto" : "%d", o->engine.draft);
    snprintf(kv, sizeof kv, "%s", o->engine.kv == LK_OPT_KV_BF16 ? "bf16" : o->engine.kv == LK_OPT_KV_F32 ? "f32" : "int8");
    const char *fixed[] = {"laoka", "serve", "-q", "--port", port, "-m", o->engine.model, "--devices", devices.data, "--threads", threads,
                           "--ctx", ctx, "--parallel", parallel, "--draft", draft, "--kv", kv, "--queue", "4096"};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) a[n++] = fixed[i];
    if (o->engine.dev.isa) a[n++] = "--isa", a[n++] = o->engine.dev.isa;
    if (o->engine.dev.image) a[n++] = "--image", a[n++] = o->engine.dev.image;
    a[n] = NULL;
    int bad = devices.failed ? ENOMEM : posix_spawn(&t->pid, "/proc/self/exe", NULL, NULL, (char *const *)a, environ);
    lk_buf_free(&devices);
    if (bad) t->pid = 0;
    return bad ? lk_fail(e, LK_ESYS, "cannot start laoka serve: %s", strerror(bad)) : 0;
}

static void facts_read(struct lk_target *t, const char *key)
{
    struct lk_buf b = {0};
    snprintf(t->model, sizeof t->model, "default");
    if (get(t->url, "/v1/models", key, &b) == 200) {
        json_t *j = json_loadb(b.data, b.len, 0, NULL);
        const char *id = json_string_value(json_object_get(json_array_get(json_object_get(j, "data"), 0), "id"));
        if (id) snprintf(t->model, sizeof t->model, "%.199s", id);
        json_decref(j);
    }
    if (get(t->url, "/version", key, &b) == 200) snprintf(t->server, sizeof t->server, "%.199s", b.data);
    lk_buf_free(&b);
}

int lk_target_open(struct lk_target *t, const struct lk_opts *o, double seconds, struct lk_err *e)
{
    struct lk_buf b = {0};
    *t = (struct lk_target){0};
    int rc = o->bench.url ? lk_url_check(o->bench.url, e) : 0, status = -1;
    if (rc) return rc;
    if (o->bench.url)
        snprintf(t->url, sizeof t->url, "%.290s", o->bench.url);
    else
        rc = own_start(t, o, e);
    double end = lk_clock() + seconds;
    while (!rc) {
        status = get(t->url, "/health", o->bench.api_key, &b);
        if (status == 404 || status == 405) status = get(t->url, "/v1/models", o->bench.api_key, &b); /* servers without /health */
        if (status == 200) break;
        if (t->pid && waitpid(t->pid, NULL, WNOHANG) == t->pid) {
            t->pid = 0;
            rc = lk_fail(e, LK_EINPUT, "laoka serve ended before it was ready: its own message says why");
        } else if (lk_clock() > end) {
            rc = lk_fail(e, LK_EINPUT, "%s: no healthy server within %.0f s (last status %d)", t->url, seconds, status);
        } else {
            nanosleep(&(struct timespec){0, 100000000}, NULL);
        }
    }
    lk_buf_free(&b);
    if (rc)
        lk_target_close(t);
    else
        facts_read(t, o->bench.api_key);
    return rc;
}

void lk_target_close(struct lk_target *t)
{
    if (!t->pid) return;
    kill(t->pid, SIGTERM);
    double end = lk_clock() + 20;
    while (waitpid(t->pid, NULL, WNOHANG) == 0) {
        if (lk_clock() > end) kill(t->pid, SIGKILL);
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    }
    t->pid = 0;
}
