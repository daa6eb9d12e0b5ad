package kube_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestLogsAreFollowed holds a log open until its reader closes it.
func TestLogsAreFollowed(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := bringWeb(t, l)
		stream, err := set.CoreV1().Pods("default").GetLogs(webPod(t, set), &corev1.PodLogOptions{Follow: true}).Stream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := io.ReadAll(stream)
			ended <- err
		}()
		time.Sleep(time.Hour)
		select {
		case err := <-ended:
			t.Errorf("the log ended: %v", err)
		default:
		}
		_ = stream.Close() // ends what reads it
		<-ended
	})
}

// TestLogsWithoutKubelet asks for the log of a pod whose node is off, and of one that
// does not run yet.
func TestLogsWithoutKubelet(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		stop := l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ready.call)
		makeWeb(t, set)
		time.Sleep(5 * time.Minute)
		logs := func() error {
			stream, err := set.CoreV1().Pods("default").GetLogs(webPod(t, set), &corev1.PodLogOptions{}).Stream(ctx)
			if err != nil {
				return err
			}
			return stream.Close()
		}
		if err := logs(); err != nil {
			t.Errorf("of a pod that runs: %v", err)
		}
		stop()
		time.Sleep(time.Second)
		if err := logs(); err == nil || !strings.Contains(err.Error(), `dial tcp 10.0.0.21:10250: connect: no route to host`) {
			t.Errorf("of a node that is off: %v", err)
		}
	})
}

// readLog is a log of a pod of the namespace default.
func readLog(set kubernetes.Interface, pod string, o corev1.PodLogOptions) (string, error) {
	stream, err := set.CoreV1().Pods("default").GetLogs(pod, &o).Stream(ctx)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(stream)
	return string(text), errors.Join(err, stream.Close())
}

// TestFollowedLogEnds follows the log of a pod that is deleted, until its container ends.
func TestFollowedLogEnds(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := bringWeb(t, l)
		pod := webPod(t, set)
		ended := make(chan string, 1)
		go func() {
			text, err := readLog(set, pod, corev1.PodLogOptions{Follow: true})
			ended <- fmt.Sprint(text, err)
		}()
		time.Sleep(time.Hour)
		if err := set.CoreV1().Pods("default").Delete(ctx, pod, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if text := <-ended; strings.Count(text, "\n") != 3 || !strings.Contains(text, `container "main" ended with exit code 0`) || !strings.HasSuffix(text, "<nil>") {
			t.Errorf("the log is %s", text)
		}
	})
}

// TestLogsAfterReboot asks for the logs of a container that a boot of its machine started
// again, and of one that cannot be started.
func TestLogsAfterReboot(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		node := kubelet("wk-1", "10.0.0.21", 501)
		node.BootID = "one"
		stop := l.kube.RunKubelet(l.id, node, ignore)
		makeWeb(t, set)
		time.Sleep(5 * time.Minute)
		pod := webPod(t, set)
		if _, err := readLog(set, pod, corev1.PodLogOptions{Previous: true}); err == nil {
			t.Error("there is a log of a container before the first")
		}
		stop()
		time.Sleep(30 * time.Second)
		node.BootID = "two"
		l.kube.RunKubelet(l.id, node, ignore)
		time.Sleep(5 * time.Minute)
		now, err := readLog(set, pod, corev1.PodLogOptions{Timestamps: true})
		if err != nil {
			t.Fatal(err)
		}
		before, err := readLog(set, pod, corev1.PodLogOptions{Timestamps: true, Previous: true})
		if err != nil || before == now || strings.Count(before, "\n") != 2 {
			t.Errorf("the log is %q, and before the boot was %q, %v", now, before, err)
		}
		bad := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bad"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "x.invalid/a:1"}, {Name: "b", Image: "b:1"}}}}
		if _, err := set.CoreV1().Pods("default").Create(ctx, bad, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		for container, want := range map[string]string{
			"":  "a container name must be specified for pod bad, choose one of: [a b]",
			"a": `container "a" in pod "bad" is waiting to start: trying and failing to pull image`,
			"b": `container "b" in pod "bad" is waiting to start`,
		} {
			if _, err := readLog(set, "bad", corev1.PodLogOptions{Container: container}); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), want) {
				t.Errorf("log of %q: %v, want %s", container, err, want)
			}
		}
	})
}

// runCommand runs a command in a pod of the namespace default as kubectl does, and
// returns what came on its channels.
func runCommand(t *testing.T, config *rest.Config, pod, query string) (out map[byte]string, resp *http.Response, err error) {
	t.Helper()
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	dialer := websocket.Dialer{TLSClientConfig: tls, Subprotocols: []string{"v5.channel.k8s.io"},
		NetDialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return config.Dial(ctx, network, addr)
		}}
	conn, resp, err := dialer.Dial(strings.Replace(config.Host, "https", "wss", 1)+"/api/v1/namespaces/default/pods/"+pod+"/exec?"+query, nil)
	if err != nil {
		return nil, resp, err
	}
	defer conn.Close()
	out = map[byte]string{}
	for {
		_, frame, err := conn.ReadMessage()
		if err != nil {
			if !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
				t.Errorf("the connection ended: %v", err)
			}
			return out, resp, nil
		}
		out[frame[0]] += string(frame[1:])
	}
}

// TestExec runs commands, which containers of the lab do not have.
func TestExec(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		stop := l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ignore)
		makeWeb(t, set)
		time.Sleep(5 * time.Minute)
		config, pod := l.config(apiAddr), webPod(t, set)
		for command, want := range map[string]string{
			"sh":          `OCI runtime exec failed: exec failed: unable to start container process: exec: "sh": executable file not found in $PATH: unknown`,
			"%2Fbin%2Fsh": `exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown`,
		} {
			out, resp, err := runCommand(t, config, pod, "container=main&stdout=true&stdin=true&command="+command)
			if err != nil {
				t.Fatal(err)
			}
			if p := resp.Header.Get("Sec-Websocket-Protocol"); p != "v5.channel.k8s.io" {
				t.Errorf("protocol %q", p)
			}
			var status metav1.Status
			if err := json.Unmarshal([]byte(out[3]), &status); err != nil || status.Status != metav1.StatusFailure || status.Reason != metav1.StatusReasonInternalError || !strings.Contains(status.Message, want) {
				t.Errorf("%s: %q, %v", command, out, err)
			}
			if text, ok := out[1]; text != "" || !ok {
				t.Errorf("%s: nothing opens the output: %q", command, out)
			}
		}
		stop()
		time.Sleep(time.Second)
		_, resp, err := runCommand(t, config, pod, "command=sh")
		if err == nil || resp == nil || resp.StatusCode != http.StatusInternalServerError {
			t.Fatalf("of a node that is off: %v, %v", resp, err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || !strings.Contains(string(body), "error dialing backend: dial tcp 10.0.0.21:10250: connect: no route to host") {
			t.Errorf("of a node that is off: %s, %v", body, err)
		}
	})
}
