// The call-back part of CUPTI over the fake driver.
//
// One subscriber at a time. Calls that a call-back makes are called back for in their turn, as the real one does:
// a subscriber guards itself.
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct CUpti_Subscriber_st {
    CUpti_CallbackFunc callback;
    void *userdata;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUpti_Subscriber_st subscriber;
static atomic_bool subscribed;
static atomic_uchar enabled[CUPTI_CB_DOMAIN_SIZE][FAKE_CALLBACKS];
static atomic_int running;
static _Thread_local int own; // how many of `running` are this thread's

static void trace(struct fake_call *call, CUpti_ApiCallbackSite site) {
    if (!atomic_load(&enabled[CUPTI_CB_DOMAIN_DRIVER_API][call->id])) return;
    atomic_fetch_add(&running, 1);
    own++;
    if (atomic_load(&subscribed)) {
        CUpti_CallbackData data = {
            .callbackSite = site,
            .functionName = call->name,
            .functionParams = call->params,
            .functionReturnValue = site == CUPTI_API_EXIT ? &call->result : NULL,
            .symbolName = call->symbol,
            .context = call->context,
            .contextUid = call->context_uid,
            .correlationData = &call->correlation_data,
            .correlationId = call->correlation_id,
        };
        subscriber.callback(subscriber.userdata, CUPTI_CB_DOMAIN_DRIVER_API, call->id, &data);
    }
    own--;
    atomic_fetch_sub(&running, 1);
}

static void set_tracer(fake_tracer to) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!driver) return;
    void (*set)(fake_tracer);
    *(void **)&set = dlsym(driver, "fakeSetTracer");
    if (set) set(to);
}

EXPORT CUptiResult cuptiGetVersion(uint32_t *version) {
    if (!version) return CUPTI_ERROR_INVALID_PARAMETER;
    *version = 130001;
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *handle, CUpti_CallbackFunc callback, void *userdata) {
    const char *knob = getenv("FAKE_CUPTI");
    if (knob && !strcmp(knob, "busy")) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    if (knob && !strcmp(knob, "error")) return CUPTI_ERROR_UNKNOWN;
    if (!handle || !callback) return CUPTI_ERROR_INVALID_PARAMETER;
    pthread_mutex_lock(&lock);
    bool busy = atomic_load(&subscribed);
    if (!busy) {
        subscriber = (struct CUpti_Subscriber_st){callback, userdata};
        *handle = &subscriber;
        atomic_store(&subscribed, true);
        set_tracer(trace);
    }
    pthread_mutex_unlock(&lock);
    return busy ? CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED : CUPTI_SUCCESS;
}

// When this returns no other thread is in the call-back.
EXPORT CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle handle) {
    if (handle != &subscriber || !atomic_load(&subscribed)) return CUPTI_ERROR_INVALID_PARAMETER;
    pthread_mutex_lock(&lock);
    set_tracer(NULL);
    atomic_store(&subscribed, false);
    memset(enabled, 0, sizeof enabled);
    while (atomic_load(&running) > own) {}
    pthread_mutex_unlock(&lock);
    return CUPTI_SUCCESS;
}

static bool known(CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain) {
    return handle == &subscriber && atomic_load(&subscribed) && domain >= CUPTI_CB_DOMAIN_DRIVER_API &&
           domain < CUPTI_CB_DOMAIN_SIZE;
}

EXPORT CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain,
                                       CUpti_CallbackId id) {
    if (!known(handle, domain) || id >= FAKE_CALLBACKS) return CUPTI_ERROR_INVALID_PARAMETER;
    atomic_store(&enabled[domain][id], enable != 0);
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiEnableDomain(uint32_t enable, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain) {
    if (!known(handle, domain)) return CUPTI_ERROR_INVALID_PARAMETER;
    for (size_t id = 0; id < FAKE_CALLBACKS; id++) atomic_store(&enabled[domain][id], enable != 0);
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiGetCallbackState(uint32_t *enable, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain,
                                         CUpti_CallbackId id) {
    if (!enable || !known(handle, domain) || id >= FAKE_CALLBACKS) return CUPTI_ERROR_INVALID_PARAMETER;
    *enable = atomic_load(&enabled[domain][id]);
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiGetResultString(CUptiResult result, const char **text) {
    if (!text) return CUPTI_ERROR_INVALID_PARAMETER;
    switch (result) {
    case CUPTI_SUCCESS: *text = "CUPTI_SUCCESS"; break;
    case CUPTI_ERROR_INVALID_PARAMETER: *text = "CUPTI_ERROR_INVALID_PARAMETER"; break;
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
        *text = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED";
        break;
    default: *text = "CUPTI_ERROR_UNKNOWN"; break;
    }
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiFinalize(void) {
    return atomic_load(&subscribed) ? cuptiUnsubscribe(&subscriber) : CUPTI_SUCCESS;
}
