// Browsers start no worker from a file:// page, and the search runs in one. There, a hidden frame stands in for it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      this.frame = document.body.appendChild(frame)
      const inside = frame.contentWindow
      inside.document.open()
      inside.document.write(`<body><script>
        postMessage = message => parent.postMessage(message, "*")
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {
          const script = Object.assign(document.createElement("script"), {src: url, onload: done, onerror: failed})
          document.body.appendChild(script)
        })), Promise.resolve())
      <\/script></body>`)
      inside.document.close()
      this.ready = new Promise((done, failed) => {
        const script = inside.document.createElement("script")
        inside.document.body.appendChild(Object.assign(script, {src: url, onload: done, onerror: failed}))
      })
      this.listener = event => {
        if (event.source !== inside) return
        const message = new MessageEvent("message", {data: event.data})
        this.dispatchEvent(message)
        this.onmessage?.(message)
      }
      window.addEventListener("message", this.listener)
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data})))
    }

    terminate() {
      window.removeEventListener("message", this.listener)
      this.frame.remove()
    }
  }
}
