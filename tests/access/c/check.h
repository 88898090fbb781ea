/* What the tests of the C library have in common: a check that names what failed. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kestrel.h>

#define FAIL(...)                                                                                  \
    do {                                                                                           \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                            \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fprintf(stderr, " (%s)\n", kestrel_error());                                               \
        exit(1);                                                                                   \
    } while (0)

/* CHECK(CONDITION): the program ends if it is not true. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) FAIL("not true: %s", #condition);                                        \
    } while (0)

/* IS(RESULT, EXPRESSION): a number that is expected. */
#define IS(result, expression)                                                                     \
    do {                                                                                           \
        long long got = (long long)(expression), wanted = (long long)(result);                     \
        if (got != wanted) FAIL("%s is %lld, not %lld", #expression, got, wanted);                 \
    } while (0)

/* SAYS(TEXT): the text of the last error has this in it. */
#define SAYS(text)                                                                                 \
    do {                                                                                           \
        if (!strstr(kestrel_error(), text)) FAIL("the text lacks: %s", text);                      \
    } while (0)

/* A handle that must be one. */
static inline int64_t good(int64_t handle, const char *what) {
    if (handle <= 0) FAIL("%s: %lld", what, (long long)handle);
    return handle;
}
#define GOOD(expression) good((expression), #expression)

#endif
