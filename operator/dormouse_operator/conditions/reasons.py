"""Every reason of a condition, and what a reader does about it. The one list: docs/lifecycle.md shows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

NOTHING = "nothing"

REMEDIES: Mapping[str, str] = {
    # the order
    "Accepted": NOTHING,
    "InvalidSpec": "correct the field that the message names; install the CRD of this version",
    "ServiceNameTaken": "remove the Service of that name or choose another name",
    "InvalidTemplate": "take the field that the message names out of spec.template, or complete it",
    "NotAccepted": "see Accepted",
    "NoReplicas": "set spec.replicas above 0",
    "Zero": "nothing: a request brings pods back; if it is ordered, set spec.lifecycle.desiredState to Auto or Active",
    # pods and nodes
    "PodRejected": "the message is the API server's: quota, admission policy, Pod Security or a field of the template",
    "PodsMissing": "wait; if it lasts, see the operator's log",
    "PodEnded": "wait: the pod is replaced",
    "WaitingForNode": "wait for the scheduler",
    "Unschedulable": "the message is the scheduler's: add a node, free its resource, or ask for less",
    "Scheduled": NOTHING,
    # the worker and its model
    "WaitingForPods": "wait",
    "ImagePullFailed": "correct spec.image or give the node access to the registry",
    "ContainerNotStarted": "the message is the kubelet's: a missing Secret or claim, a wrong user, a bad mount",
    "DownloadingModel": "wait; the log of the container download tells how far it is",
    "ModelDownloadFailed": "the message ends with the downloader's reason; it is tried again and continues",
    "Unauthorized": "accept the model's terms on the hub; set spec.model.tokenSecretRef to a token that may read it",
    "NoSafetensors": "choose a repository or spec.model.revision with *.safetensors",
    "Truncated": "wait: the download is tried again and continues",
    "HubUnreachable": "wait; if it lasts, check HF_ENDPOINT and the way out of the cluster",
    "WorkerStarting": "wait",
    "WorkerCrashed": "read the last line in the message, then `kubectl logs --previous`",
    "WorkerEnded": "wait: the kubelet starts it again",
    "Loading": "wait",
    "Loaded": NOTHING,
    "ModelNotFound": "correct spec.model.uri, or put the model where it points",
    "ModelInvalid": "the message names the file; copy the model again",
    "ModelChanged": "restart the pod: the files are not those that it was started with",
    "WeightsDamaged": "the message names the file; copy the model again",
    "CustomCodeRefused": "choose a model that transformers knows; code of models is not run",
    "PickleRefused": "convert the weights to safetensors",
    "InvalidSettings": "correct the field that the message names",
    "StorageFull": "make room where the message says",
    "GoldenTokensDiffer": "the device computes otherwise than at the start: check it, restart the pod",
    "WrongState": "wait; report it if it lasts",
    "InvalidArgument": "report it: the operator sent what the worker can not do",
    "ProfileNotWritten": "make the directory of --profiler-dir writable",
    "Internal": "see the worker's log and report it",
    # memory and blocks
    "WaitingForModel": "wait",
    "Profiling": "wait",
    "Profiled": NOTHING,
    "InsufficientMemory": "lower maxModelLen, maxNumSeqs or maxNumBatchedTokens, or give the worker more memory",
    "MaxModelLenTooLarge": "lower maxModelLen to what the message says, or give the worker more memory",
    "ReportOutOfBounds": "report it: a worker measured what can not be",
    "NoReports": "wait",
    "WaitingForReports": "wait: it ends by itself",
    "BlockSizeDiffers": "use one worker image for all pods; delete the pod that the message names",
    "Agreed": NOTHING,
    "WaitingForAgreement": "wait",
    "AllocationRefused": "the message is the worker's",
    "Allocating": "wait",
    "Allocated": NOTHING,
    # roll-outs
    "Surging": "wait: new pods come first, then the old ones go",
    "Swapping": "wait: engines are exchanged inside their pods, one at a time",
    "Recreating": "wait: each pod is deleted first, then created",
    "Complete": NOTHING,
    "ProgressDeadlineExceeded": "see the first condition that is not True; change the spec or apply the old one again",
    "SwapRefused": "the message is the worker's; the old engine serves on",
    "WorkerFailed": "the message is the worker's; change the spec or apply the old one again",
    # serving
    "PodsNotReady": "wait; the kubelet's probe decides",
    "NoneServes": "see the first condition that is not True",
    "Serving": NOTHING,
    # sleep and wake
    "Asleep": "nothing: a request wakes it; if it is ordered, set spec.lifecycle.desiredState to Auto or Active",
    "Awake": NOTHING,
    "Starting": "wait",
    "GoingToSleep": "wait; running requests end first, at most drainTimeoutSeconds",
    "SleepRefused": "the message names the pod and why; the others stay awake",
    "Waking": "wait",
    "WakeRefused": "free the memory that the message names; it is tried again",
    "Verified": NOTHING,
    "ResidualTooHigh": "delete the pod that the message names, and report its log",
    # attention
    "AsExpected": NOTHING,
    "NameTaken": "set another spec.model.name",
    "Forbidden": "give the operator's role the verb and resource that the message names",
}
