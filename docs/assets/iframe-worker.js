// Search in pages opened from a folder. Browsers start no worker on file:// addresses, so the search script runs in a
// hidden frame, with the same messages. The offline plugin would otherwise load such a script from a CDN; it looks for
// "iframe-worker" in this file's name.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      this.loaded = new Promise((resolve) => script.addEventListener("load", resolve))
      script.src = address
      inside.document.body.append(script)
      this.inside = inside
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }
  }
}
