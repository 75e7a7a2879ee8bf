/* One HTTP request for a file or the rest of it. */
#include "data/download/download.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef LKSI_HAS_CURL

#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>

#define FUNCTIONS(X)                                                                                                   \
    X(global_init, curl_global_init)                                                                                   \
    X(init, curl_easy_init)                                                                                            \
    X(setopt, curl_easy_setopt)                                                                                        \
    X(perform, curl_easy_perform)                                                                                      \
    X(getinfo, curl_easy_getinfo)                                                                                      \
    X(cleanup, curl_easy_cleanup)                                                                                      \
    X(strerror, curl_easy_strerror)

static struct {
#define MEMBER(name, function) __typeof__(function) *(name);
    FUNCTIONS(MEMBER)
#undef MEMBER
    lks_status status;
    char error[256];
} curl;
static pthread_once_t curl_once = PTHREAD_ONCE_INIT;

static void load_curl(void) {
#define NAME(name, function) #function,
    static const char *const names[] = {FUNCTIONS(NAME)};
#undef NAME
#define POINTER(name, function) &curl.name,
    void *const pointers[] = {FUNCTIONS(POINTER)};
#undef POINTER
    curl.status = lksi_library_load("libcurl.so.4", "libcurl4", names, pointers, sizeof names / sizeof *names);
    (void)lksi_libcrypto_open(); /* before libcurl initialises libcrypto */
    if (curl.status == LKS_OK && curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        curl.status = lksi_error(LKS_ERR_SYSTEM, "libcurl cannot be initialised");
    if (curl.status != LKS_OK) snprintf(curl.error, sizeof curl.error, "%s", lksi_error_text());
}

lks_status lksi_download_transfer_available(void) {
    pthread_once(&curl_once, load_curl);
    return curl.status == LKS_OK ? LKS_OK : lksi_error(curl.status, "%s", curl.error);
}

/* State shared with the callbacks. */
typedef struct answer {
    lksi_download_transfer *transfer;
    CURL *handle;
    int64_t range_begin; /* from the header of a partial response; otherwise -1 */
    int64_t nbytes;      /* length that the response declares; -1: none */
    bool has_begun, is_too_long, is_out_of_place;
    int error; /* errno of a failed write */
} answer;

static size_t take_header(char *line, size_t nbytes_each, size_t count, void *context) {
    static const char name[] = "content-range: bytes ";
    answer *a = context;
    size_t nbytes = nbytes_each * count, i = 0;
    char *end;
    if (nbytes >= 5 && strncmp(line, "HTTP/", 5) == 0) a->range_begin = -1; /* discards headers of a redirection */
    while (i < nbytes && name[i] != '\0' && (line[i] | 0x20) == (name[i] | 0x20)) i++;
    if (name[i] != '\0' || i >= nbytes) return nbytes;
    char digits[32];
    snprintf(digits, sizeof digits, "%.*s", (int)(nbytes - i < 31 ? nbytes - i : 31), line + i);
    errno = 0;
    long long begin = strtoll(digits, &end, 10);
    if (end != digits && *end == '-' && errno == 0) a->range_begin = begin;
    return nbytes;
}

/* Called for the first byte. A server without ranges sends the file from its beginning, and a captive portal sends a
 * page of its own. */
static bool begin_body(answer *a) {
    lksi_download_transfer *transfer = a->transfer;
    long code = 0;
    curl_off_t nbytes = -1;
    curl.getinfo(a->handle, CURLINFO_RESPONSE_CODE, &code);
    curl.getinfo(a->handle, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &nbytes);
    a->has_begun = true;
    a->nbytes = nbytes;
    if (code != 206 && transfer->restarts) transfer->offset = 0;
    a->is_out_of_place = (code == 206 ? a->range_begin : 0) != transfer->offset;
    if (a->is_out_of_place) return false;
    transfer->begun_at = transfer->offset;
    a->is_too_long = nbytes > transfer->max_nbytes - transfer->offset;
    if (a->is_too_long) return false;
    a->error = ftruncate(transfer->descriptor, transfer->offset) == 0 ? 0 : errno;
    return a->error == 0;
}

static size_t take_body(char *data, size_t nbytes_each, size_t count, void *context) {
    answer *a = context;
    lksi_download_transfer *transfer = a->transfer;
    size_t nbytes = nbytes_each * count, n_done = 0;
    if (!a->has_begun && !begin_body(a)) return 0;
    a->is_too_long = (int64_t)nbytes > transfer->max_nbytes - transfer->offset;
    if (a->is_too_long) return 0;
    while (n_done < nbytes) {
        ssize_t n_written = pwrite(transfer->descriptor, data + n_done, nbytes - n_done, (off_t)transfer->offset);
        if (n_written < 0 && errno == EINTR) continue;
        if (n_written <= 0) {
            a->error = n_written < 0 ? errno : ENOSPC;
            return 0;
        }
        n_done += (size_t)n_written;
        transfer->offset += n_written;
    }
    return nbytes;
}

static int take_time(void *context, curl_off_t total, curl_off_t now, curl_off_t total_up, curl_off_t now_up) {
    (void)total, (void)now, (void)total_up, (void)now_up;
    const answer *a = context;
    return lksi_download_progress_tick(a->transfer->progress, a->transfer->offset) ? 0 : 1;
}

static void set_protocols(CURL *handle) {
#if LIBCURL_VERSION_NUM >= 0x075500
    curl.setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
    curl.setopt(handle, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
#else
    curl.setopt(handle, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    curl.setopt(handle, CURLOPT_REDIR_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
}

static void set_options(CURL *handle, const char *url, answer *a, char *error, char *range, size_t range_nbytes) {
    const lksi_fetch_limits *limits = a->transfer->limits;
    char agent[64];
    snprintf(agent, sizeof agent, "lockstep/%s", lks_version());
    set_protocols(handle);
    curl.setopt(handle, CURLOPT_URL, url);
    curl.setopt(handle, CURLOPT_USERAGENT, agent);
    curl.setopt(handle, CURLOPT_ERRORBUFFER, error);
    curl.setopt(handle, CURLOPT_NOSIGNAL, 1L);
    curl.setopt(handle, CURLOPT_FAILONERROR, 1L);
    curl.setopt(handle, CURLOPT_FOLLOWLOCATION, 1L);
    curl.setopt(handle, CURLOPT_MAXREDIRS, 10L);
    curl.setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, (long)limits->connect_ms);
    curl.setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1000L);
    curl.setopt(handle, CURLOPT_LOW_SPEED_TIME, (long)limits->stall_s);
    curl.setopt(handle, CURLOPT_HEADERFUNCTION, take_header);
    curl.setopt(handle, CURLOPT_HEADERDATA, a);
    curl.setopt(handle, CURLOPT_WRITEFUNCTION, take_body);
    curl.setopt(handle, CURLOPT_WRITEDATA, a);
    curl.setopt(handle, CURLOPT_NOPROGRESS, 0L);
    curl.setopt(handle, CURLOPT_XFERINFOFUNCTION, take_time);
    curl.setopt(handle, CURLOPT_XFERINFODATA, a);
    if (a->transfer->offset > 0) {
        snprintf(range, range_nbytes, "%lld-", (long long)a->transfer->offset);
        curl.setopt(handle, CURLOPT_RANGE, range);
    }
}

/* Classifies HTTP errors into temporary and final ones. 416 means that the server has nothing after `offset`, so the
 * partial file may be complete. */
static lksi_outcome classify_status(lksi_download_transfer *transfer, long status) {
    snprintf(transfer->reason, sizeof transfer->reason, "HTTP status %ld", status);
    if (status == 416 && transfer->offset > 0) {
        transfer->begun_at = transfer->offset;
        return LKSI_GOT_ALL;
    }
    return status == 408 || status == 416 || status == 429 || status >= 500 ? LKSI_CUT_OFF : LKSI_REFUSED;
}

/* Explains why a callback of this file ended the transfer. */
static lksi_outcome classify_stop(lksi_download_transfer *transfer, const answer *a) {
    char *reason = transfer->reason;
    if (a->is_out_of_place) {
        snprintf(reason, sizeof transfer->reason, "sends another range than the requested one");
        if (transfer->restarts) transfer->offset = 0;
        return transfer->restarts ? LKSI_CUT_OFF : LKSI_UNFIT;
    }
    if (a->is_too_long) {
        transfer->offset = transfer->begun_at; /* the response belongs to another file */
        snprintf(reason, sizeof transfer->reason, "sends more than the %lld bytes expected",
                 (long long)transfer->max_nbytes);
        return LKSI_REFUSED;
    }
    snprintf(reason, sizeof transfer->reason, "%s: %s", transfer->path, strerror(a->error));
    return LKSI_GIVEN_UP;
}

static lksi_outcome classify(lksi_download_transfer *transfer, const answer *a, CURLcode code, const char *error) {
    long status = 0;
    curl.getinfo(a->handle, CURLINFO_RESPONSE_CODE, &status);
    if (a->is_out_of_place || a->is_too_long || a->error != 0) return classify_stop(transfer, a);
    if (code == CURLE_HTTP_RETURNED_ERROR) return classify_status(transfer, status);
    if (code == CURLE_ABORTED_BY_CALLBACK) {
        snprintf(transfer->reason, sizeof transfer->reason, "given up");
        return LKSI_GIVEN_UP;
    }
    if (code != CURLE_OK) {
        snprintf(transfer->reason, sizeof transfer->reason, "%s", error[0] != '\0' ? error : curl.strerror(code));
        bool is_final = code == CURLE_TOO_MANY_REDIRECTS || code == CURLE_URL_MALFORMAT ||
                        code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_PEER_FAILED_VERIFICATION;
        return is_final ? LKSI_REFUSED : LKSI_CUT_OFF;
    }
    if (a->has_begun && (a->nbytes >= 0 || transfer->offset == transfer->max_nbytes)) return LKSI_GOT_ALL;
    snprintf(transfer->reason, sizeof transfer->reason, "the answer ended after %lld of %lld bytes",
             (long long)transfer->offset, (long long)transfer->max_nbytes);
    return a->has_begun ? LKSI_ENDED : LKSI_CUT_OFF;
}

lksi_outcome lksi_download_transfer_run(lksi_download_transfer *transfer, const char *url) {
    char error[CURL_ERROR_SIZE] = "", range[32];
    CURL *handle = curl.init();
    if (handle == NULL) {
        snprintf(transfer->reason, sizeof transfer->reason, "libcurl is out of memory");
        return LKSI_GIVEN_UP;
    }
    answer a = {.transfer = transfer, .handle = handle, .range_begin = -1, .nbytes = -1};
    set_options(handle, url, &a, error, range, sizeof range);
    CURLcode code = curl.perform(handle);
    lksi_outcome outcome = classify(transfer, &a, code, error);
    curl.cleanup(handle);
    return outcome;
}

#else

lks_status lksi_download_transfer_available(void) {
    return lksi_error(LKS_ERR_UNSUPPORTED, "nothing can be downloaded: lockstep was built without libcurl (Debian: "
                                           "apt-get install libcurl4-openssl-dev, then build it again)");
}

lksi_outcome lksi_download_transfer_run(lksi_download_transfer *transfer, const char *url) {
    snprintf(transfer->reason, sizeof transfer->reason, "%s: built without libcurl", url);
    return LKSI_GIVEN_UP;
}

#endif
