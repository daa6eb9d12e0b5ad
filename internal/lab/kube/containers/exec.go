package containers

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
	"github.com/talos-agent/talos-agent/internal/retry"
)

// Calls are the subresources of pods that a kube-apiserver has from the kubelet of the
// pod's node.
var Calls = []string{"attach", "exec", "log", "portforward"}

// Unreachable is the answer about a kubelet that cannot be reached.
func Unreachable(format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: fmt.Sprintf(format, args...)}}
}

// hangUpAfter is how long a kubelet waits for a client to close a connection on which
// everything was sent.
const hangUpAfter = 10 * time.Second

// startsWithin is how long a container runtime takes to find that a command cannot be started. Clients rely on that: kubectl
// reads from a connection before it has made the streams that it reads for (client-go 0.35, remotecommand).
const startsWithin = 100 * time.Millisecond

// The channels of a connection that are used, after its protocol.
// Source: k8s.io/kubelet, pkg/cri/streaming/remotecommand.
const (
	stdoutChannel = 1
	errorChannel  = 3
)

// Exec answers a command over the WebSocket that kubectl opens for it: containers of the
// lab are empty, so it is never found. The error returned was not answered yet.
func Exec(w http.ResponseWriter, r *http.Request, pod map[string]any, container string) error {
	up := websocket.Upgrader{
		Subprotocols: []string{remotecommand.StreamProtocolV5Name, remotecommand.StreamProtocolV4Name},
		CheckOrigin:  func(*http.Request) bool { return true }, // who asks has shown a certificate
	}
	if !isRunning(pod, container) {
		return Unreachable("unable to upgrade connection: container not found (%q)", container)
	}
	query := r.URL.Query()
	command := query["command"]
	if len(command) == 0 {
		return apierrors.NewBadRequest("you must specify at least 1 command for the container")
	}
	status, err := json.Marshal(notFound(pod, command[0]))
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	conn, err := up.Upgrade(w, r, nil)
	if err != nil {
		return nil // answered by the library
	}
	defer conn.Close()
	if retry.Sleep(r.Context(), startsWithin) != nil {
		return nil
	}
	first := byte(errorChannel)
	if query.Get("stdout") == "true" {
		first = stdoutChannel
	}
	bye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	for _, frame := range [][]byte{{first}, append([]byte{errorChannel}, status...)} {
		if conn.WriteMessage(websocket.BinaryMessage, frame) != nil {
			return nil // the client hung up
		}
	}
	until := time.Now().Add(hangUpAfter)
	if conn.WriteControl(websocket.CloseMessage, bye, until) != nil || conn.SetReadDeadline(until) != nil {
		return nil
	}
	for {
		if _, _, err := conn.ReadMessage(); err != nil {
			return nil // the client closed it, as it was asked to
		}
	}
}

func isRunning(pod map[string]any, container string) bool {
	for _, c := range rules.MapsAt(pod, "status", "containerStatuses") {
		if rules.TextAt(c, "name") == container {
			return rules.MapAt(c, "state", "running") != nil
		}
	}
	return false
}

// notFound is what containerd and runc report of a command that a container does not
// have. A kubelet calls that an error of its own, so kubectl sees no exit code.
func notFound(pod map[string]any, command string) metav1.Status {
	id := sha256.Sum256([]byte(rules.TextAt(pod, "metadata", "uid") + command))
	why := "executable file not found in $PATH"
	if strings.Contains(command, "/") {
		why = fmt.Sprintf("stat %s: no such file or directory", command)
	}
	return apierrors.NewInternalError(fmt.Errorf("error executing command in container: failed to exec in container: failed to start exec %q: "+
		"OCI runtime exec failed: exec failed: unable to start container process: exec: %q: %s: unknown", fmt.Sprintf("%x", id), command, why)).Status()
}
